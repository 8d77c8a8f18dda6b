"""One chunk of a stream of speech."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AudioChunk:
    """One response of the server.

    audio          [n] float32 in -1…1 or int16, the channels in turns; n may be 0, in the last chunk above all
    sample_rate    samples a second and channel
    index          0, 1, 2 … within its stream
    final          True for the last chunk, and only for it
    finish_reason  "" until the last chunk, then ``stop``, ``length`` or ``cancelled`` (``error`` is raised instead)
    received_at    time.monotonic() in seconds, when the chunk reached this process (not when it was asked for)
    timeline       what the server noted about the request: seconds since it was received, by event. Only in a last
                   chunk, and only when the server sends it
    channels       1 for mono; 2 for stereo, left first: ``audio.reshape(-1, 2)`` has one column a channel
    """

    audio: np.ndarray
    sample_rate: int
    index: int
    final: bool
    finish_reason: str
    received_at: float
    timeline: Mapping[str, float] | None = None
    channels: int = 1

    @property
    def samples(self) -> int:
        """Samples of one channel."""
        return len(self.audio) // self.channels

    @property
    def seconds(self) -> float:
        """Length of the audio in seconds."""
        return self.samples / self.sample_rate if self.sample_rate else 0.0


def as_int16(audio: np.ndarray) -> np.ndarray:
    """Samples as little-endian int16: int16 unchanged; float x becomes round(32767 · clip(x, -1, 1)), NaN becomes 0."""
    if audio.dtype == np.int16:
        return audio.astype("<i2", copy=False)
    if audio.dtype.kind != "f":
        raise TypeError(f"audio has dtype {audio.dtype}; int16 and floating point are supported")
    return np.rint(np.clip(np.nan_to_num(audio), -1.0, 1.0) * 32767.0).astype("<i2")
