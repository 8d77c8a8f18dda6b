"""Parameters: what config.pbtxt documents is what the code has, and a wrong one is refused by name."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from backends.asr.decoder_service import AsrDecoderStage
from backends.asr.encoder_service import AsrEncoderStage
from backends.asr.prompt_service import AsrPromptStage
from backends.decoder.service import DecoderStage
from backends.decoder.settings import DecoderSettings
from backends.encoder.service import AudioEncoderStage
from backends.errors import InvalidArgument
from backends.launch.parameters import SETTINGS
from backends.launch.repository import find_models
from backends.prompt.service import PromptStage
from backends.settings import home, load_settings, overrides
from backends.vocoder.service import VocoderStage


def test_the_launcher_checks_with_the_classes_that_the_stages_load() -> None:
    stages: dict[str, Any] = {
        "audio_encoder": AudioEncoderStage,
        "tts_prompt": PromptStage,
        "tts_decoder": DecoderStage,
        "tts_vocoder": VocoderStage,
        "asr_prompt": AsrPromptStage,
        "asr_encoder": AsrEncoderStage,
        "asr_decoder": AsrDecoderStage,
    }
    assert {name: stage.Settings for name, stage in stages.items()} == SETTINGS
    assert SETTINGS.keys() == {model.name for model in find_models([home() / "model_repository"])}


@pytest.mark.parametrize("stage", SETTINGS)
def test_the_config_documents_every_parameter_with_its_default(stage: str) -> None:
    models = {model.name: model for model in find_models([home() / "model_repository"])}
    written = models[stage].parameters
    assert load_settings(SETTINGS[stage], stage, written) == SETTINGS[stage]()
    assert written.keys() == {field.name for field in dataclasses.fields(SETTINGS[stage])}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("max_runing", "4", "is not a parameter of tts_decoder; did you mean max_running?"),
        ("volume", "4", "is not a parameter of tts_decoder; it has check_integrity, checkpoint, chunk_frames"),
        ("max_running", "0", "0 is not allowed; give a number from 1 to 1024"),
        ("max_running", "1025", "1025 is not allowed; give a number from 1 to 1024"),
        ("max_running", "many", "'many' is not a whole number from 1 to 1024"),
        ("max_running", "2.0", "'2.0' is not a whole number from 1 to 1024"),
        ("max_running", "", "'' is not a whole number from 1 to 1024"),
        ("num_threads", "-1", "-1 is not allowed; give a number of 0 or more"),
        ("cuda_graph_min_free_gib", "inf", "inf is not allowed; give a number of 0 or more"),
        ("deterministic", "perhaps", "'perhaps' is neither true nor false"),
        ("dtype", "int8", "'int8' is not one of auto, float32, bfloat16, float16"),
        ("device", "tpu", "'tpu' is not auto, cpu, cuda or cuda:N"),
        ("checkpoint", " ", "'' is not allowed; give some text"),
        ("slowest_rate", "nan", "nan is not allowed; give a number from 0.1 to 1"),
        ("prefill_rows", "24", "24 is not a multiple of page_rows 16"),
        ("kv_pages", "3", "3 is below 64, what one request of max_positions needs"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(key: str, value: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(f"tts_decoder.{key}: {words}")):
        load_settings(DecoderSettings, "tts_decoder", {}, {key: value})


def test_overrides_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXSTAGE_OVERRIDES", '{"tts_decoder": {"max_running": "3", "deterministic": "false"}}')
    settings: Any = load_settings(DecoderSettings, "tts_decoder", {"max_running": "9"}, overrides("tts_decoder"))
    assert settings.max_running == 3 and settings.deterministic is False
    assert overrides("tts_prompt") == {}
