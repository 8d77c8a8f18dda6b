"""A codec that looks ahead: what the windowed engine asks of it, for all of the DAC family."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backends.errors import CheckpointError
from backends.models.codebook_table import CodebookTable
from backends.models.codes import check_codes
from backends.models.dac_decoder import DacDecoder

#: Of oneDNN's cache of compiled kernels: layers times window lengths, with room. Its own default, 1024, holds those of
#: some 36 lengths; with more in use every window compiled its kernels anew (a small codec on a CPU, 60 lengths in turn:
#: 33 ms a window instead of 7).
_KERNELS = "8192"


def keep_kernels() -> None:
    """Let oneDNN keep the kernels of all window lengths in use. Works until the first convolution of the process; a
    value that the environment has already set stays."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KERNELS)


class WindowCodec:
    """Codes to samples without state. Float32, mono.

    ``sampling_rate`` in Hz, ``hop`` samples a frame, ``codebooks`` and ``entries`` the sizes of a frame's codes.
    ``special``: ids from ``entries`` on that a language model of this architecture may say; they sound like code 0.
    A sample depends on the ``look_back`` frames before its own and on the ``look_ahead`` frames after it.
    """

    def __init__(
        self,
        tables: Sequence[Tensor],
        decoder: DacDecoder,
        sampling_rate: int,
        special: int = 0,
    ) -> None:
        """``tables``: one [entries + special, width] a codebook; a frame is the sum of a row of each."""
        self._tables, self._decoder, self.spec = CodebookTable(tables), decoder, decoder.spec
        self.sampling_rate, self.device, self.channels = sampling_rate, tables[0].device, 1
        self.hop, self.codebooks = self.spec.hop, len(tables)
        self.special, self.entries = special, len(tables[0]) - special
        self.frame_rate = sampling_rate / self.hop
        self.reach = self.spec.reach
        # Frame f is heard from f * hop - before to f * hop + after, both included.
        self.look_ahead, self.look_back = -(-self.reach.before // self.hop), self.reach.after // self.hop

    def samples(self, frames: int) -> int:
        """Samples of a whole decode of ``frames`` frames: ``frames * hop``, less what odd strides lose at the end."""
        return self.spec.samples(frames)

    def check_codes(self, codes: Tensor) -> None:
        """InvalidArgument unless ``codes`` is an integer tensor [T, codebooks] below entries + special."""
        check_codes(codes, self.codebooks, self.entries + self.special)

    def vectors(self, codes: Tensor) -> Tensor:
        """What the decoder reads: codes int64 [B, T, codebooks] -> float32 [B, width, T]."""
        return self._tables.decode(codes).transpose(1, 2).contiguous()

    def decode_batch(self, codes: Tensor) -> Tensor:
        """Windows of one length: codes int64 [B, T, codebooks] on the codec's device, T >= 1, checked by the caller ->
        float32 [B, samples(T)]. What lies outside a window counts as nothing, as before and after a whole stream."""
        return self._decoder(self.vectors(codes))

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """One whole decode: codes [T, codebooks] -> float32 [samples(T)]. InvalidArgument for codes out of range."""
        self.check_codes(codes)
        if not codes.shape[0]:
            return torch.zeros(0, device=self.device)
        return self.decode_batch(codes.to(self.device, torch.int64)[None])[0]


def positive(config: dict[str, Any], key: str, default: int, where: str = "") -> int:
    """A whole number >= 1 of a config; ``default`` where the key is absent. CheckpointError for anything else."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{where}{key}: {value!r} is not a whole number of at least 1")
    return value


def strides_of(values: Any, width: int, where: str) -> tuple[int, ...]:
    """Upsampling strides of a decoder ``width`` channels wide. CheckpointError for what makes no decoder."""
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise CheckpointError(f"{where}: {values!r} is not a list of strides")
    if wrong := [value for value in values if isinstance(value, bool) or not isinstance(value, int) or value < 2]:
        raise CheckpointError(f"{where}: a stride of {wrong[0]!r} is not implemented, only whole numbers from 2")
    if width % 2 ** len(values):
        raise CheckpointError(f"decoder_hidden_size: {width} cannot be halved {len(values)} times")
    return tuple(values)


def used_codebooks(wanted: int | None, stored: int) -> int:
    """How many codebooks to read. CheckpointError when the codec has fewer than are wanted."""
    used = stored if wanted is None else wanted
    if not 1 <= used <= stored:
        raise CheckpointError(f"codebooks: {used} is not between 1 and the codec's {stored}")
    return used
