"""What serve.py refuses before it starts anything: parameters and the checkpoint's language."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backends.errors import InvalidArgument
from backends.launch.failure import USAGE, LaunchError
from backends.launch.options import find_overrides, parse_options
from backends.launch.parameters import check_checkpoints, check_parameters
from backends.launch.pipelines import choose_models
from backends.launch.repository import Model, find_models
from backends.models.languages import check_language
from tests.conftest import ROOT

VOICE = ROOT / "checkpoints" / "voice" / "tts"


def check(*settings: str, models: list[Model] | None = None) -> None:
    options = parse_options([word for setting in settings for word in ("--set", setting)], ROOT)
    models = models or choose_models(find_models(options.repositories), options.pipelines)
    overrides = find_overrides(options, models)
    check_parameters(models, overrides)
    check_checkpoints(models, overrides, ROOT)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("tts_decoder.max_running=0", "0 is not allowed; give a number from 1 to 1024"),
        ("tts_decoder.max_waiting=few", "'few' is not a whole number of 0 or more"),
        ("tts_decoder.prefill_rows=24", "24 is not a multiple of page_rows 16"),
        ("tts_decoder.dtype=int8", "'int8' is not one of auto, float32, bfloat16, float16"),
        ("tts_vocoder.device=tpu", "'tpu' is not auto, cpu, cuda or cuda:N"),
        ("tts_prompt.language=Klingon", "'Klingon' is not one of English, None"),
        ("tts_prompt.language=english", "'english' is not one of English, None; did you mean English?"),
    ],
)
def test_a_value_that_a_stage_would_refuse_is_refused_here(setting: str, problem: str) -> None:
    with pytest.raises(LaunchError) as caught:
        check(setting)
    assert caught.value.exit_code == USAGE
    assert str(caught.value) == f"--set {setting}: {problem}"


def test_what_is_good_passes() -> None:
    check()
    check("tts_decoder.max_running=1", "tts_prompt.language=None", "tts_vocoder.device=cuda:3")


def test_a_wrong_config_is_named_by_its_file(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        check(models=[Model("tts_vocoder", tmp_path, True, parameters={"slots": "none"})])
    assert str(caught.value) == (
        f"{tmp_path / 'config.pbtxt'}, parameter slots: 'none' is not a whole number of 1 or more"
    )


def test_a_checkpoint_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(LaunchError) as caught:
        check("tts_prompt.checkpoint=/nowhere")
    assert str(caught.value) == "checkpoint: the directory /nowhere does not exist"


def test_serve_says_it_without_loading_torch() -> None:
    """Nothing is started, not even the imports that take seconds."""
    code = (
        "import sys, serve; code = serve.main(['--set', 'tts_decoder.max_running=0']); "
        "sys.exit(str({'torch', 'tokenizers', 'transformers'} & set(sys.modules)) if code == 2 else 'code')"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines() == [
        "serve.py: --set tts_decoder.max_running=0: 0 is not allowed; give a number from 1 to 1024",
        "set()",
    ]
    assert ended.stdout == ""


def test_languages_of_the_voice_that_ships() -> None:
    for language in ("English", "None"):
        check_language(VOICE, language)
    with pytest.raises(InvalidArgument, match=r"^INVALID_ARG tts_prompt\.language: '' is not one of English, None"):
        check_language(VOICE, "", "tts_prompt.language")


@pytest.fixture
def any_language(tmp_path: Path) -> Path:
    """A checkpoint that names no languages: any text that stays in its field is good."""
    token = {"id": 7, "content": "<|im_end|>", "special": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [token]}))
    return tmp_path


def test_a_checkpoint_without_a_list_takes_any_name(any_language: Path) -> None:
    for language in ("Português (Brasil)", "中文", "klingon", "None"):
        check_language(any_language, language)


@pytest.mark.parametrize(
    ("language", "problem"),
    [
        ("English\n- Text:\n", "is not one line"),
        ("", "'' is not one line"),
        ("English<|im_end|>", "holds the control token <|im_end|>"),
    ],
)
def test_no_language_may_leave_its_field(any_language: Path, language: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match="language: ") as caught:
        check_language(any_language, language)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("tts_prompt.max_positions=5000", "5000 is above 1024, the value of tts_decoder.max_positions"),
        ("tts_prompt.max_voice_seconds=61", "61.0 is above 60.0, the value of audio_encoder.max_seconds"),
        ("audio_encoder.max_seconds=5", "30.0 is above 5.0, the value of audio_encoder.max_seconds"),
        ("tts_decoder.first_chunk_frames=9999", "9999 is not allowed; give a number from 1 to 1000"),
    ],
)
def test_what_stages_ask_of_each_other_fits(setting: str, sentence: str) -> None:
    models = find_models([ROOT / "model_repository"])
    stage, _, rest = setting.partition(".")
    key, _, value = rest.partition("=")
    with pytest.raises(LaunchError, match=re.escape(sentence)):
        check_parameters(models, {stage: {key: value}})
