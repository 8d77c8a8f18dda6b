"""Slots: where the streaming state of a codec lives, and who owns which place."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from backends.errors import Internal, Unavailable


class CausalCodec(Protocol):
    """What the streaming engine asks of a codec. ``MossAudioTokenizer`` documents each member."""

    sampling_rate: int
    hop: int
    channels: int
    codebooks: int
    entries: int
    device: torch.device

    def check_codes(self, codes: Tensor) -> None: ...

    def new_state(self, slots: int, step_frames: int) -> list[Tensor]: ...

    def step(self, codes: Tensor, frames: Tensor, slots: Tensor, state: list[Tensor]) -> Tensor: ...


class SlotState:
    """State of ``slots`` streams and of ``scratch`` more places that fill up a step, for steps of up to ``step_frames``
    frames. Written in place; addresses never move.

    ``frames`` int64 [slots + scratch] counts the frames a place has decoded. A place with 0 frames is a fresh stream,
    whatever its tensors hold: the codec never looks before frame 0 (finite values are masked out exactly, and a codec
    of finite weights makes no others). So opening a slot clears nothing but the count.
    """

    def __init__(self, codec: CausalCodec, slots: int, scratch: int, step_frames: int) -> None:
        if slots < 1 or scratch < 1:
            raise ValueError(f"slots: {slots} and scratch: {scratch} must be at least 1")
        self.slots = slots
        self.tensors = codec.new_state(slots + scratch, step_frames)
        self.frames = torch.zeros(slots + scratch, dtype=torch.int64, device=codec.device)
        self.scratch = tuple(range(slots, slots + scratch))
        self._free = list(reversed(range(slots)))
        self._fresh: set[int] = set()

    @property
    def free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def open(self) -> int:
        """Take a free slot. Unavailable when there is none."""
        if not self._free:
            raise Unavailable(f"slots: all {self.slots} vocoder slots are taken")
        slot = self._free.pop()
        self._fresh.add(slot)
        return slot

    def close(self, slot: int) -> None:
        """Give a slot back. Internal when it is not open."""
        self.check_open(slot)
        self._fresh.discard(slot)
        self._free.append(slot)

    def check_open(self, slot: int) -> None:
        """Internal when ``slot`` is not an open slot: a fault of the caller, never of a request."""
        if not 0 <= slot < self.slots or slot in self._free:
            raise Internal(f"slot: {slot} is not open")

    def is_fresh(self, slot: int) -> bool:
        """True until the first step of the stream, which must reset the count, and always for a scratch place."""
        return slot >= self.slots or slot in self._fresh

    def started(self, slot: int) -> None:
        """The stream has had its first step."""
        self._fresh.discard(slot)
