"""One stream of a codec that looks ahead: the codes it still needs, and which window of them decodes to what.

With ``back`` frames of context before and ``ahead`` after, all samples of a frame are final once ``ahead`` more frames
are there, or the stream has ended. So a chunk decodes the frames from ``back`` before the first one not yet sent to the
last one received, and sends those that are final. The cut is in whole frames: no sample is made twice, none is blended.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """``codes`` [frames, codebooks] to decode; of the samples those of the frames ``skip`` to ``stop`` are sent,
    counted from the window's first frame; ``stop`` None: to the end, whatever the codec makes of it."""

    codes: Tensor
    skip: int
    stop: int | None

    @property
    def frames(self) -> int:
        """Frames to decode; 0 when no sample is final yet."""
        return len(self.codes)

    def cut(self, audio: Tensor, per_frame: int) -> Tensor:
        """The samples to send, of float32 [samples] with ``per_frame`` a frame."""
        return audio[self.skip * per_frame : None if self.stop is None else self.stop * per_frame]


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """A stream between two chunks. ``codes`` [kept, codebooks] integers, the first being frame ``first``; the samples
    of all frames before ``sent`` are out."""

    codes: Tensor
    first: int = 0
    sent: int = 0
    ended: bool = False

    def advance(self, codes: Tensor, last: bool, back: int, ahead: int) -> tuple[Window, StreamWindow]:
        """The window that a chunk of T more frames decodes, and the stream after it. Nothing is changed in place: a
        decode that fails leaves the stream as it was."""
        kept = torch.cat([self.codes, codes])  # a copy: the chunk's memory is the caller's
        received = self.first + len(kept)
        final = received if last else max(received - ahead, self.sent)
        if final == self.sent:
            return Window(kept[:0], 0, 0), StreamWindow(kept, self.first, self.sent, last)
        window = Window(kept, self.sent - self.first, None if last else final - self.first)
        start = max(final - back, self.first)
        return window, StreamWindow(kept[start - self.first :].clone(), start, final, last)
