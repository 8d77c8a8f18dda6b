"""The parameters of the stages, checked before anything is started: by the code that the stages themselves use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from backends.asr.settings import (
    DEFAULT_CHECKPOINT,
    AsrDecoderSettings,
    AsrEncoderSettings,
    AsrPromptSettings,
    check_room,
)
from backends.checkpoint import inspect_asr_checkpoint, inspect_checkpoint
from backends.decoder.settings import DecoderSettings
from backends.encoder.settings import EncoderSettings
from backends.errors import CheckpointError, InvalidArgument
from backends.launch.failure import USAGE, LaunchError
from backends.launch.repository import Model
from backends.models.languages import check_language
from backends.prompt.settings import PromptSettings
from backends.settings import load_settings
from backends.vocoder.settings import VocoderSettings

#: stage → key → value.
Overrides = Mapping[str, Mapping[str, str]]
#: Stage → the class of its parameters. Other stages are taken by what their config.pbtxt says.
SETTINGS: dict[str, type] = {
    "audio_encoder": EncoderSettings,
    "tts_prompt": PromptSettings,
    "tts_decoder": DecoderSettings,
    "tts_vocoder": VocoderSettings,
    "asr_prompt": AsrPromptSettings,
    "asr_encoder": AsrEncoderSettings,
    "asr_decoder": AsrDecoderSettings,
}


def _not_above(key: str, other: str, bound: str) -> Callable[[Any, Any], None]:
    """A check that ``key`` of one stage is not above ``bound`` of the stage ``other``: it asks for that much."""

    def check(settings: Any, others: Any) -> None:
        value, limit = getattr(settings, key), getattr(others, bound)
        if value > limit:
            raise InvalidArgument(key, f"{value} is above {limit}, the value of {other}.{bound}")

    return check


#: Stages whose parameters must fit each other, where both are served: (stage, other stage, check of both settings).
FIT: tuple[tuple[str, str, Callable[[Any, Any], None]], ...] = (
    ("tts_prompt", "tts_decoder", _not_above("max_positions", "tts_decoder", "max_positions")),
    ("tts_prompt", "audio_encoder", _not_above("max_voice_seconds", "audio_encoder", "max_seconds")),
    ("asr_prompt", "asr_decoder", check_room),
)
#: Stages whose checkpoint is one for speech to text.
ASR_STAGES = frozenset({"asr_prompt", "asr_encoder", "asr_decoder"})


def parameter_names(stage: Model) -> set[str]:
    """What ``--set`` may change in ``stage``."""
    known = SETTINGS.get(stage.name)
    return set(stage.parameters) if known is None else {field.name for field in dataclasses.fields(known)}


def check_parameters(models: Sequence[Model], overrides: Overrides) -> None:
    """Raise LaunchError for a value that its stage would refuse. ``overrides``: what the command line changes."""
    loaded: dict[str, tuple[Model, Any]] = {}
    for model in models:
        changed = overrides.get(model.name, {})
        if not model.is_stage or model.name not in SETTINGS:
            continue
        try:
            settings: Any = load_settings(SETTINGS[model.name], model.name, model.parameters, changed)
        except InvalidArgument as error:
            raise LaunchError(f"{_origin(model, error.field, changed)}: {error.problem}", USAGE) from None
        loaded[model.name] = model, settings
    for stage, other, check in FIT:
        if stage in loaded and other in loaded:
            model, settings = loaded[stage]
            try:
                check(settings, loaded[other][1])
            except InvalidArgument as error:
                origin = _origin(model, error.field, overrides.get(stage, {}))
                raise LaunchError(f"{origin}: {error.problem}", USAGE) from None


def check_checkpoints(models: Sequence[Model], overrides: Overrides, root: Path) -> None:
    """Raise LaunchError for a checkpoint that is missing or unknown, or one that cannot speak the language asked for.

    ``root``: the repository root, which relative checkpoint paths start from.
    """
    for model in models:
        changed = overrides.get(model.name, {})
        chosen = {**model.parameters, **changed}
        if not model.is_stage or not chosen.get("checkpoint"):
            continue
        try:
            if model.name in ASR_STAGES:
                inspect_asr_checkpoint(root / chosen["checkpoint"])
                continue
            folder = inspect_checkpoint(root / chosen["checkpoint"]).tts.folder
            if SETTINGS.get(model.name) is PromptSettings:
                check_language(folder, chosen.get("language", PromptSettings.language))
        except CheckpointError as error:
            raise LaunchError(error.args[0], USAGE) from None
        except InvalidArgument as error:
            raise LaunchError(f"{_origin(model, error.field, changed)}: {error.problem}", USAGE) from None


def make_default_checkpoint(
    models: Sequence[Model], overrides: MutableMapping[str, dict[str, str]], root: Path
) -> None:
    """Make the default speech-to-text checkpoint where a stage is to load it. Where it had to go to another folder,
    ``overrides`` say so afterwards. Raises LaunchError when that fails.
    """
    wanted = [
        model.name
        for model in models
        if model.name in ASR_STAGES
        and {**model.parameters, **overrides.get(model.name, {})}.get("checkpoint") == DEFAULT_CHECKPOINT
    ]
    if not wanted:
        return
    from backends.asr.default_checkpoint import default_checkpoint  # not at the top: it needs NumPy

    try:
        made = default_checkpoint(root)
    except CheckpointError as error:
        raise LaunchError(error.args[0], USAGE) from None
    if made != root / DEFAULT_CHECKPOINT:
        for name in wanted:
            overrides.setdefault(name, {})["checkpoint"] = str(made)


def _origin(model: Model, field: str, changed: Mapping[str, str]) -> str:
    """Where the value of ``field`` (``key``, or ``stage.key``) was written."""
    key = field.rpartition(".")[2]
    if key in changed:
        return f"--set {model.name}.{key}={changed[key]}"
    return f"{model.folder / 'config.pbtxt'}, parameter {key}"
