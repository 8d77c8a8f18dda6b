"""Codecs by the ``model_type`` of their published config."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.errors import CheckpointError
from backends.json_file import read_json
from backends.models import mimi, moss_audio_tokenizer
from backends.models.mimi import Mimi
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.vocoder.state import CausalCodec

CODECS: dict[str, type[MossAudioTokenizer] | type[Mimi]] = {
    moss_audio_tokenizer.MODEL_TYPE: MossAudioTokenizer,
    mimi.MODEL_TYPE: Mimi,
}


def load_codec(folder: Path, device: str | torch.device = "cpu", codebooks: int | None = None) -> CausalCodec:
    """The codec of a published folder with ``config.json`` and safetensors.

    ``codebooks`` limits it to its first ones. CheckpointError for a ``model_type`` that is not known, and for what
    the codec's own ``load`` refuses.
    """
    kind = read_json(folder / "config.json").get("model_type")
    if kind not in CODECS:
        raise CheckpointError(f"{folder}: model_type {kind!r} is not one of {', '.join(sorted(CODECS))}")
    return CODECS[kind].load(folder, device, codebooks)
