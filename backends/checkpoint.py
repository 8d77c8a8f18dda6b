"""What a checkpoint folder holds, read from its config files alone: no weights, no torch.

A voice checkpoint is a folder with two sub-folders, each in the format its architecture was published in:
``tts/`` (the speech language model) and ``codec/`` (the audio codec that turns its codes into sound). A speech-to-text
checkpoint is one folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.errors import CheckpointError
from backends.json_file import read_json

#: ``model_type`` → class name in ``architectures``, for each part of a checkpoint.
KNOWN: dict[str, dict[str, str]] = {
    "tts": {"moss_tts_local": "MossTTSLocalModel"},
    "codec": {
        "moss-audio-tokenizer": "MossAudioTokenizerModel",
        "mimi": "MimiModel",
        "dac": "DacModel",
        "higgs_audio_v2_tokenizer": "HiggsAudioV2TokenizerModel",
    },
}

#: The same for a speech-to-text checkpoint, which is one folder.
KNOWN_ASR = {
    "whisper": "WhisperForConditionalGeneration",
    "qwen3_asr": "Qwen3ASRForConditionalGeneration",
    "moss_transcribe_diarize": "MossTranscribeDiarizeForConditionalGeneration",
}


@dataclass(frozen=True)
class Part:
    """One half of a checkpoint. ``config`` is its ``config.json``."""

    folder: Path
    model_type: str
    config: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose two architectures are known."""

    folder: Path
    tts: Part
    codec: Part


def inspect_checkpoint(folder: str | Path) -> Checkpoint:
    """Read the configs of both parts. Raises CheckpointError, in one sentence, for what is missing or unknown."""
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint: the directory {folder} does not exist")
    return Checkpoint(folder=folder, tts=_inspect_part(folder, "tts"), codec=_inspect_part(folder, "codec"))


def inspect_asr_checkpoint(folder: str | Path) -> Part:
    """The config of a speech-to-text checkpoint. Raises CheckpointError as :func:`inspect_checkpoint` does."""
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint: the directory {folder} does not exist")
    return _inspect_folder(folder, "asr", KNOWN_ASR)


def spoken_codebooks(folder: Path) -> int | None:
    """How many codebooks the text model of a checkpoint speaks: the first ones of its codec, which may have more
    (MOSS-TTS-Local v1.5: 12 of 32). None where the folder has no ``tts/``, or its config does not say.
    """
    path = folder / "tts" / "config.json"
    count = read_json(path).get("n_vq") if path.exists() else None
    return count if isinstance(count, int) and count > 0 else None


def channel_count(config: dict[str, Any]) -> int:
    """Channels of MOSS-Audio-Tokenizer, which it models as one stream of samples in turns. ``config``: the codec's."""
    channels = int(config.get("number_channels", 1))
    if channels not in (1, 2):
        raise CheckpointError(f"number_channels: {channels} is not implemented, only 1 and 2")
    if channels > 1 and not config.get("enable_channel_interleave", True):
        raise CheckpointError(f"enable_channel_interleave: False is not implemented for {channels} channels, only True")
    return channels


def _inspect_part(folder: Path, name: str) -> Part:
    part = folder / name
    if not part.is_dir():
        raise CheckpointError(f"checkpoint: {folder} has no sub-directory {name}/; it needs tts/ and codec/")
    return _inspect_folder(part, name, KNOWN[name])


def _inspect_folder(part: Path, name: str, known: dict[str, str]) -> Part:
    path = part / "config.json"
    config = read_json(path)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in known:
        raise CheckpointError(
            f"checkpoint: {path} has the unknown model_type {model_type!r}; "
            f"known for {name}: {', '.join(sorted(known))}"
        )
    architectures = config.get("architectures")
    # Published configs may leave the list out; one that names another class is another network.
    if architectures is not None and known[model_type] not in (
        architectures if isinstance(architectures, list) else []
    ):
        raise CheckpointError(
            f"checkpoint: {path} has the unknown architectures {architectures!r}; "
            f"{model_type} is known as {known[model_type]}"
        )
    return Part(folder=part, model_type=model_type, config=config)
