"""When a stream hands over its frames: small chunks first, then larger ones, by a rule that knows the request only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ChunkSchedule:
    """Sizes of the chunks of one stream, in frames.

    A listener starts playing at the first chunk. With ``f`` the first size, ``s`` the frames sent so far and ``r`` the
    slowest production rate to be survived (seconds of work a second of audio), chunk k is in time when
    ``r * (s + size - f) <= s``, so the largest safe size is ``f + s * (1 - r) / r``. That, up to ``largest``, is the
    rule: playback never runs dry while the server makes audio at ``r`` or faster. ``r`` = 1 keeps every chunk at the
    first size.
    """

    first: int
    largest: int
    slowest_rate: float = 0.8
    sent: int = 0

    def next_size(self) -> int:
        """Frames of the next chunk; at least 1."""
        if self.sent == 0:
            return min(self.first, self.largest)
        # Integers throughout: the same request must cut at the same frames on every machine.
        permille = round(self.slowest_rate * 1000)
        return min(self.first + self.sent * (1000 - permille) // permille, self.largest)

    def take(self, frames: int) -> None:
        """Note that a chunk of ``frames`` has been sent."""
        self.sent += frames
