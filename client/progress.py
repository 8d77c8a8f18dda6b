"""Progress of a stream on stderr, and what was measured when it has ended."""

from __future__ import annotations

import math
import sys
from typing import TextIO

from client.chunk import AudioChunk
from client.errors import count
from client.playback import Playback
from client.transcript import Transcript, TranscriptChunk

BAR = 24


class Progress:
    """Of speech: one line that rewrites itself on a terminal, a line a chunk elsewhere."""

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


class TranscriptProgress:
    """How far a recording has been written down: a bar that redraws itself on a terminal, nothing elsewhere.

    The position is the end of the last segment. Without ``seconds``, the length of the recording, there is no bar.
    """

    def __init__(self, name: str, seconds: float | None, started_at: float, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._name, self._seconds, self._started_at = name, seconds, started_at
        self._live = self._out.isatty()
        self._position = 0.0

    def update(self, chunk: TranscriptChunk) -> None:
        """Show one chunk."""
        self._position = max([self._position, *(segment.end for segment in chunk.segments)])
        if self._live:
            self._out.write(f"\r\x1b[K{self.line(chunk.received_at - self._started_at, chunk.final)}")
            self._out.flush()

    def line(self, elapsed: float, final: bool = False) -> str:
        """``talk.mp3 [############            ]  50 %, 30 s in 2.0 s``."""
        if not self._seconds:
            return f"{self._name} {self._position:.0f} s in {elapsed:.1f} s"
        share = 1.0 if final else min(1.0, self._position / self._seconds)
        bar = f"{'#' * round(share * BAR):<{BAR}}"
        return f"{self._name} [{bar}] {100 * share:3.0f} %, {self._position:.0f} s in {elapsed:.1f} s"

    def close(self) -> None:
        """Take the bar away: what follows says more."""
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()


def transcript_summary(transcript: Transcript, seconds: float | None) -> str:
    """``60.00 s of audio in 1.50 s, 40.0 times as fast as it plays, first text after 0.20 s, language en``."""
    parts = [f"{transcript.total_s:.2f} s"]
    if seconds:
        speed = seconds / transcript.total_s if transcript.total_s > 0 else math.inf
        parts = [f"{seconds:.2f} s of audio in {transcript.total_s:.2f} s", f"{speed:.1f} times as fast as it plays"]
    if transcript.first_text_s is None:
        parts.append("no speech found")
    else:
        parts.append(f"first text after {transcript.first_text_s:.2f} s")
    return ", ".join(parts + ([f"language {transcript.language}"] if transcript.language else []))


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
