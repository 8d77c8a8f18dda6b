"""Codecs by the ``model_type`` of their published config."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.errors import CheckpointError
from backends.json_file import read_json
from backends.models import dac, higgs_audio_tokenizer, mimi, moss_audio_tokenizer
from backends.models.dac import Dac
from backends.models.higgs_audio_tokenizer import HiggsAudioTokenizer
from backends.models.mimi import Mimi
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.window_codec import WindowCodec, keep_kernels
from backends.vocoder.state import CausalCodec

#: Causal: a stream carries state from chunk to chunk.
CODECS: dict[str, type[MossAudioTokenizer] | type[Mimi]] = {
    moss_audio_tokenizer.MODEL_TYPE: MossAudioTokenizer,
    mimi.MODEL_TYPE: Mimi,
}
#: Not causal: a chunk decodes a window.
WINDOW_CODECS: dict[str, type[Dac] | type[HiggsAudioTokenizer]] = {
    dac.MODEL_TYPE: Dac,
    higgs_audio_tokenizer.MODEL_TYPE: HiggsAudioTokenizer,
}


def load_codec(
    folder: Path, device: str | torch.device = "cpu", codebooks: int | None = None
) -> CausalCodec | WindowCodec:
    """The codec of a published folder with ``config.json`` and safetensors.

    ``codebooks`` limits it to its first ones. CheckpointError for a ``model_type`` that is not known, and for what
    the codec's own ``load`` refuses.
    """
    kind = read_json(folder / "config.json").get("model_type")
    if kind in WINDOW_CODECS:
        keep_kernels()
        return WINDOW_CODECS[kind].load(folder, device, codebooks)
    if kind not in CODECS:
        known = sorted([*CODECS, *WINDOW_CODECS])
        raise CheckpointError(f"{folder}: model_type {kind!r} is not one of {', '.join(known)}")
    return CODECS[kind].load(folder, device, codebooks)
