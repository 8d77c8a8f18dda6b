"""Parameters: what config.pbtxt documents is what the code has, and a wrong one is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from backends.decoder.service import DecoderSettings
from backends.errors import InvalidArgument
from backends.launch.repository import find_models
from backends.prompt.service import PromptSettings
from backends.settings import home, load_settings, overrides
from backends.vocoder.service import VocoderSettings

STAGES: dict[str, type] = {
    "tts_prompt": PromptSettings,
    "tts_decoder": DecoderSettings,
    "tts_vocoder": VocoderSettings,
}


@pytest.mark.parametrize("stage", STAGES)
def test_the_config_documents_every_parameter_with_its_default(stage: str) -> None:
    models = {model.name: model for model in find_models([home() / "model_repository"])}
    written = models[stage].parameters
    assert load_settings(STAGES[stage], stage, written) == STAGES[stage]()
    assert written.keys() == {field.name for field in dataclasses.fields(STAGES[stage])}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "max_runing",
            "4",
            "tts_decoder.max_runing: is not a parameter of tts_decoder; it has check_integrity, checkpoint",
        ),
        ("max_running", "0", "tts_decoder.max_running: 0 is outside 1...1024"),
        ("max_running", "many", "tts_decoder.max_running: 'many' is not of type int"),
        ("deterministic", "perhaps", "tts_decoder.deterministic: 'perhaps' is neither true nor false"),
        ("dtype", "int8", "tts_decoder.dtype: 'int8' is not one of auto"),
        ("slowest_rate", "nan", "tts_decoder.slowest_rate: nan is outside"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(key: str, value: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words.replace("...", r"\.\.\.")):
        load_settings(DecoderSettings, "tts_decoder", {}, {key: value})


def test_overrides_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXSTAGE_OVERRIDES", '{"tts_decoder": {"max_running": "3", "deterministic": "false"}}')
    settings: Any = load_settings(DecoderSettings, "tts_decoder", {"max_running": "9"}, overrides("tts_decoder"))
    assert settings.max_running == 3 and settings.deterministic is False
    assert overrides("tts_prompt") == {}
