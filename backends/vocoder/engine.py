"""What the stage asks of a vocoder engine, whatever codec is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from backends.errors import VoxstageError


class CodeChunk(NamedTuple):
    """The next frames of one stream: ``codes`` integers [T, codebooks], T may be 0; ``last`` ends the stream."""

    slot: int
    codes: Tensor
    last: bool = False


class Vocoder(Protocol):
    """An engine with one owner thread. ``hop`` samples a frame and channel, at ``sampling_rate`` Hz."""

    hop: int
    sampling_rate: int
    channels: int
    step_streams: int

    def open(self) -> int:
        """A slot for a new stream. Unavailable when all are taken."""
        ...

    def close(self, slot: int) -> None:
        """End a stream, finished or not; nothing of it reaches the slot's next owner."""
        ...

    def decode_each(self, chunks: Sequence[CodeChunk]) -> list[Tensor | VoxstageError]:
        """One result a chunk, in order: float32 [samples * channels], channels in turns, full scale 1.0, not clipped.

        All samples of a stream have been returned when its last chunk has; a codec that looks ahead may return those
        of a frame with a later chunk. A bad chunk gets its own error, and its peers decode as if it were not there.
        """
        ...
