"""Which models a server serves, and how Triton is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import serve
from backends.launch.command import triton_command
from backends.launch.failure import USAGE, LaunchError
from backends.launch.options import find_overrides, parse_options
from backends.launch.pipelines import choose_models, pipeline_of
from backends.launch.repository import Model, find_models
from backends.launch.triton import Triton
from tests.conftest import ROOT

TTS = {"tts", "tts_prompt", "tts_decoder", "tts_vocoder", "audio_encoder"}
ASR = {"asr", "asr_prompt", "asr_decoder", "asr_encoder"}


@pytest.fixture(scope="module")
def models() -> list[Model]:
    return find_models([ROOT / "model_repository", ROOT / "ensemble"])


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [([], TTS), (["--pipelines", "tts"], TTS), (["--pipelines", "asr"], ASR), (["--pipelines", "asr, tts"], TTS | ASR)],
)
def test_a_pipeline_is_its_ensemble_and_its_stages(models: list[Model], arguments: list[str], wanted: set[str]) -> None:
    pipelines = parse_options(arguments, ROOT).pipelines
    assert {model.name for model in choose_models(models, pipelines)} == wanted


def test_models_of_somebody_else_are_always_served() -> None:
    other = Model("other", ROOT, True)
    assert pipeline_of("other") is None and pipeline_of("ttsx") is None
    assert choose_models([other, Model("asr", ROOT, False)], ("tts",)) == [other]
    with pytest.raises(LaunchError, match="--pipelines tts: the repositories hold no model of it, only asr") as caught:
        choose_models([Model("asr", ROOT, False)], ("tts",))
    assert caught.value.exit_code == USAGE


def test_an_unknown_pipeline_is_refused() -> None:
    with pytest.raises(LaunchError, match="'sst' is not one of tts, asr"):
        parse_options(["--pipelines", "tts,sst"], ROOT)


def test_triton_is_told_which_models_to_load_where_some_are_left_out() -> None:
    triton = Triton(Path("/t/bin/tritonserver"), Path("/t/b"), Path("/t/s"))
    command = triton_command(triton, Path("/b"), parse_options([], ROOT), {}, "v-", ["asr", "asr_prompt"])
    assert command[command.index("--model-control-mode") + 1] == "explicit"
    assert [part for part in command if part.startswith("--load-model")] == [
        "--load-model=asr",
        "--load-model=asr_prompt",
    ]
    assert "--model-control-mode" not in triton_command(triton, Path("/b"), parse_options([], ROOT), {}, "v-")


def test_each_pipeline_has_a_checkpoint_of_its_own(models: list[Model]) -> None:
    found = find_overrides(parse_options(["--checkpoint", "/c", "--asr-checkpoint", "/a"], ROOT), models)
    assert {name: each["checkpoint"] for name, each in found.items()} == {
        name: "/a" if name in ASR else "/c" for name in (TTS | ASR) - {"tts", "asr"}
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--set", "asr_decoder.max_running=4"],
            "--set asr_decoder.max_running=4: asr_decoder is a stage of the pipeline asr, and only tts is served; "
            "start it with --pipelines tts,asr",
        ),
        (
            ["--pipelines", "asr", "--set", "audio_encoder.max_seconds=4"],
            "--set audio_encoder.max_seconds=4: audio_encoder is a stage of the pipeline tts, and only asr is served; "
            "start it with --pipelines tts,asr",
        ),
        (
            ["--asr-checkpoint", "/a"],
            "--asr-checkpoint /a is for the pipeline asr, and only tts is served; start it with --pipelines tts,asr",
        ),
        (
            ["--pipelines", "asr", "--checkpoint", "/c"],
            "--checkpoint /c is for the pipeline tts, and only asr is served; start it with --pipelines tts,asr",
        ),
    ],
)
def test_what_is_for_a_pipeline_that_is_left_out_says_how_to_start_it(
    models: list[Model], arguments: list[str], sentence: str
) -> None:
    options = parse_options(arguments, ROOT)
    chosen = choose_models(models, options.pipelines)
    with pytest.raises(LaunchError) as caught:
        find_overrides(options, chosen, [model for model in models if model not in chosen])
    assert str(caught.value) == sentence and caught.value.exit_code == USAGE


def test_serve_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--set", "asr_decoder.max_running=4"]) == USAGE
    assert capsys.readouterr().err.endswith("only tts is served; start it with --pipelines tts,asr\n")
