"""Mimi (``model_type`` ``mimi``, the format of transformers), decode side: a causal codec of convolutions around a
windowed transformer.

codes -> split residual quantizer -> transposed convolution to the transformer's rate -> transformer -> SEANet decoder
-> samples. Every part keeps its own past by slot, so that a chunk decodes as it does inside the whole stream. (The
public implementation carries only keys and values from chunk to chunk; its convolutions start anew.)

Reads a published folder by its tensor names and config keys. Tensors of the encode side may be there and are left
alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.checkpoint_files import read_tensors
from backends.json_file import read_json
from backends.models.causal_conv import CausalConv
from backends.models.causal_transformer import pad_rows
from backends.models.codes import check_codes
from backends.models.mimi_config import MODEL_TYPE, read_spec
from backends.models.mimi_quantizer import read_split_quantizer
from backends.models.mimi_transformer import MimiTransformer
from backends.models.named_tensors import NamedTensors, RandomTensors
from backends.models.seanet_decoder import SeanetDecoder

__all__ = ["MODEL_TYPE", "Mimi"]
_ENCODE_SIDE = ("encoder.", "encoder_transformer.", "downsample.")


class Mimi:
    """The decoder: ``decode`` a whole stream, ``step`` a chunk of several streams. Float32.

    ``sampling_rate`` in Hz, ``hop`` in samples a frame and channel, ``channels`` 1 or 2, ``codebooks`` and ``entries``
    the sizes of a frame's codes.
    """

    GPU_DTYPE = torch.float32

    def __init__(self, config: dict[str, Any], tensors: NamedTensors, codebooks: int | None = None) -> None:
        self.spec = spec = read_spec(config, codebooks)
        self.sampling_rate, self.hop, self.channels = spec.sampling_rate, spec.hop, spec.seanet.channels
        self.codebooks, self.entries = spec.quantizer.used, spec.quantizer.entries
        self.frame_rate = self.sampling_rate / self.hop
        self.device = tensors.device
        width = spec.transformer.width
        self._table = read_split_quantizer(spec.quantizer, tensors, "quantizer")
        self._upsample = CausalConv.read_transposed(
            tensors, "upsample.conv", width, width, spec.stride, spec.upsample_groups, bias=False
        )
        self._transformer = MimiTransformer(spec.transformer, spec.key_heads, tensors, "decoder_transformer")
        self._seanet = SeanetDecoder(spec.seanet, tensors, "decoder")
        tensors.ignore(*_ENCODE_SIDE)
        tensors.finish()

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        folder: Path,
        device: str | torch.device = "cpu",
        codebooks: int | None = None,
        dtype: torch.dtype = GPU_DTYPE,
        decode_only: bool = True,
    ) -> Mimi:
        """Read a published folder. ``codebooks`` limits the codec to its first ones. CheckpointError names what is
        wrong. ``dtype`` is float32, and there is no encoder: both only so that all codecs load alike."""
        config = read_json(folder / "config.json")
        tensors = NamedTensors(read_tensors(folder), str(folder), torch.device(device), dtype)
        return cls(config, tensors, codebooks)

    @classmethod
    @torch.inference_mode()
    def dummy(
        cls,
        folder: Path,
        device: str | torch.device = "cpu",
        codebooks: int | None = None,
        dtype: torch.dtype = GPU_DTYPE,
        decode_only: bool = True,
    ) -> Mimi:
        """The codec that ``config.json`` of ``folder`` describes, with seeded random weights: for benchmarks."""
        return cls(read_json(folder / "config.json"), RandomTensors(0, torch.device(device), dtype), codebooks)

    def check_codes(self, codes: Tensor) -> None:
        """InvalidArgument unless ``codes`` is an integer tensor [T, codebooks] with values in [0, entries).

        A language model may have ids above those, for padding or the end (CSM has): they name no sound, and its
        decoder must not pass them on.
        """
        check_codes(codes, self.codebooks, self.entries)

    def new_state(self, slots: int, step_frames: int) -> list[Tensor]:
        """Streaming state for ``slots`` streams: the context of the upsampling, the transformer's history, and the
        contexts of the SEANet decoder. It is the same for steps of any length."""
        return [
            self._upsample.new_context(slots),
            self._transformer.new_history(slots),
            *self._seanet.new_state(slots),
        ]

    def step(self, codes: Tensor, frames: Tensor, slots: Tensor, state: list[Tensor]) -> Tensor:
        """Decode T frames of B streams and move their state on, in place.

        ``codes`` int64 [B, T, codebooks], checked by the caller; ``frames`` int64 [B], frames decoded before;
        ``slots`` int64 [B], all different. Returns float32 [B, T * hop * channels], channels in turns, full scale
        1.0. No host synchronisation, no shape from data.
        """
        batch, count = codes.shape[:2]
        steps, width = count * self.spec.stride, self.spec.transformer.width
        fresh = frames == 0
        upsample, history, *contexts = state
        rows = self._upsample.forward(pad_rows(self._table.decode(codes)), count, slots, fresh, upsample)
        x = rows[: batch * steps].view(batch, steps, width)
        x = self._transformer.forward(x, frames, slots, history)
        rows = self._seanet.forward(pad_rows(x), steps, slots, fresh, contexts)
        return rows[: batch * count * self.hop].reshape(batch, -1)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """One whole decode: codes [T, codebooks] -> float32 [T * hop * channels]. InvalidArgument for codes out of
        range."""
        self.check_codes(codes)
        if not codes.shape[0]:
            return torch.zeros(0, device=self.device)
        start = torch.zeros(1, dtype=torch.int64, device=self.device)
        return self.step(codes.to(self.device, torch.int64)[None], start, start, self.new_state(1, len(codes)))[0]
