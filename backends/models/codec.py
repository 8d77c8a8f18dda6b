"""Codecs by the ``model_type`` of their published config."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.errors import CheckpointError, InvalidArgument
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
    folder: Path,
    device: str | torch.device = "cpu",
    codebooks: int | None = None,
    dtype: torch.dtype | None = None,
    dummy: bool = False,
    decode_only: bool = False,
) -> CausalCodec | WindowCodec:
    """The codec of a published folder with ``config.json`` and safetensors.

    ``codebooks`` limits it to its first ones; ``dtype`` is that of its decoder's matrix products, None: float32 on a
    CPU, on a GPU what the codec is for; ``dummy``: seeded random weights of the sizes in ``config.json``;
    ``decode_only``: without the encoder. CheckpointError for a ``model_type`` that is not known, and for what the
    codec's own ``load`` refuses; InvalidArgument for a ``dtype`` that the codec does not compute in.
    """
    kind = read_json(folder / "config.json").get("model_type")
    if kind in WINDOW_CODECS:
        keep_kernels()
        if dtype not in (None, torch.float32):
            raise _no_dtype(dtype, kind, device)
        if dummy:
            raise InvalidArgument("load_format", f"'dummy' is not for a {kind} codec")
        return WINDOW_CODECS[kind].load(folder, device, codebooks)
    if kind not in CODECS:
        known = sorted([*CODECS, *WINDOW_CODECS])
        raise CheckpointError(f"{folder}: model_type {kind!r} is not one of {', '.join(known)}")
    codec = CODECS[kind]
    best = codec.GPU_DTYPE if torch.device(device).type == "cuda" else torch.float32
    if dtype not in (None, torch.float32, best):
        raise _no_dtype(dtype, kind, device)
    load = codec.dummy if dummy else codec.load
    return load(folder, device, codebooks, dtype or best, decode_only)


def _no_dtype(dtype: torch.dtype, kind: str, device: str | torch.device) -> InvalidArgument:
    return InvalidArgument("dtype", f"{str(dtype).removeprefix('torch.')} is not for a {kind} codec on {device}")
