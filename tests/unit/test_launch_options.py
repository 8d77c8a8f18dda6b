"""The command line of serve.py, and what it changes in the stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.launch.failure import USAGE, LaunchError
from backends.launch.options import find_overrides, parse_options
from backends.launch.repository import Model

ROOT = Path("/voxstage")
DECODER = Model("tts_decoder", ROOT, True, parameters={"checkpoint": "a", "device": "auto", "max_running": "8"})
OTHER = Model("other", ROOT, True, parameters={"size": "4"})
PROMPT = Model("tts_prompt", ROOT, True, parameters={"checkpoint": "a"})
ENSEMBLE = Model("tts", ROOT, False)
MODELS = [DECODER, PROMPT, OTHER, ENSEMBLE]


def overrides(*arguments: str) -> dict[str, dict[str, str]]:
    return find_overrides(parse_options(arguments, ROOT), MODELS)


def test_defaults_listen_on_this_machine_only_and_serve_both_repositories():
    options = parse_options([], ROOT)
    assert options.host == "127.0.0.1"
    assert options.ports == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert options.repositories == (ROOT / "model_repository", ROOT / "ensemble")
    assert find_overrides(options, MODELS) == {}


def test_checkpoint_and_device_reach_every_stage_that_takes_them():
    assert overrides("--checkpoint", "/c", "--device", "cuda:1") == {
        "tts_decoder": {"checkpoint": "/c", "device": "cuda:1"},
        "tts_prompt": {"checkpoint": "/c"},
    }


def test_set_wins_over_device_and_keeps_equals_signs():
    found = overrides("--device", "cpu", "--set", "tts_decoder.device=cuda", "--set", "tts_prompt.checkpoint=a=b.c")
    assert found == {"tts_decoder": {"device": "cuda"}, "tts_prompt": {"checkpoint": "a=b.c"}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "tts_decoder"], ["--set 'tts_decoder'", "STAGE.KEY=VALUE"]),
        (["--set", "decoder.max_running=1"], ["'decoder'", "did you mean tts_decoder?"]),
        (["--set", "speech.max_running=1"], ["'speech'", "the stages are other, tts_decoder, tts_prompt"]),
        (["--set", "tts.max_running=1"], ["no stage is called 'tts'"]),
        (["--set", "tts_decoder.max_runing=1"], ["'max_runing'", "did you mean max_running?"]),
        (
            ["--set", "tts_prompt.volume=1"],
            ["'volume'", "it has checkpoint, language, max_chunk_frames"],
        ),
        (["--set", "other.depth=1"], ["'depth'", "it has size"]),
        (["--device", "tpu"], ["'tpu'", "cuda:N"]),
        (["--http-port", "65536"], ["65536", "65535"]),
        (["--http-port", "-1"], ["'-1'", "whole number"]),
        (["--http-port", "9", "--grpc-port", "9"], ["three different ports", "9"]),
        (["--canary-interval", "nan"], ["'nan'", "seconds"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_a_wrong_command_line_is_one_sentence_that_names_the_value(arguments, words):
    with pytest.raises(LaunchError) as caught:
        overrides(*arguments)
    assert caught.value.exit_code == USAGE
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_checkpoint_without_a_stage_that_takes_one_is_refused():
    with pytest.raises(LaunchError, match="no stage has a parameter 'checkpoint'"):
        find_overrides(parse_options(["--checkpoint", "/c"], ROOT), [ENSEMBLE])
