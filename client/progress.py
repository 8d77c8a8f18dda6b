"""Progress of a stream on stderr: one line that rewrites itself on a terminal, a line a chunk elsewhere."""

from __future__ import annotations

import math
import sys
from typing import TextIO

from client.chunk import AudioChunk
from client.errors import count
from client.playback import Playback


class Progress:
    def __init__(self, started_at: float, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._started_at = started_at
        self._live = self._out.isatty()
        self._seconds = 0.0
        self._open = False

    def update(self, chunk: AudioChunk) -> None:
        """Show one chunk."""
        self._seconds += chunk.seconds
        after = chunk.received_at - self._started_at
        if self._live:
            line = f"{count(chunk.index + 1, 'chunk')}, {self._seconds:.2f} s of audio after {after:.2f} s"
            self._out.write(f"\r\x1b[K{line}")
            self._open = True
        else:
            self._out.write(f"chunk {chunk.index}: {chunk.seconds:.2f} s of audio after {after:.2f} s\n")
        self._out.flush()

    def close(self) -> None:
        """End the rewriting line, so that what follows starts on a line of its own."""
        if self._open:
            self._out.write("\n")
            self._out.flush()
            self._open = False


def summary(playback: Playback) -> list[tuple[str, str]]:
    """What was measured, as (name, value) rows."""
    factor = playback.real_time_factor
    return [
        ("first chunk", f"{1000 * playback.first_chunk_s:.0f} ms"),
        ("real-time factor", "no audio" if math.isinf(factor) else f"{factor:.3f}"),
        ("chunks", str(playback.chunks)),
        ("audio", f"{playback.audio_s:.2f} s"),
        ("worst gap", f"{1000 * playback.worst_gap_s:.0f} ms"),
        ("playback underrun", "none" if playback.underrun_s == 0 else f"{1000 * playback.underrun_s:.0f} ms"),
    ]


def table(rows: list[tuple[str, str]]) -> str:
    """Rows as two aligned columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
