"""Which waiting chunks make the next step. Pure: the caller passes the time in, and nothing here touches a tensor.

Order: first chunks in order of arrival, because somebody is waiting in silence; then the streams that are closest to
running dry. The most urgent chunk leads the step, and chunks of other streams with the same number of frames fill it,
most urgent first. The chunks themselves are as the request's schedule cut them, so load changes when a chunk is
decoded and never what it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Chunk(Generic[Payload]):
    """``frames`` frames of ``stream``, waiting; ``payload`` is the caller's."""

    stream: int
    frames: int
    payload: Payload


@dataclass(slots=True)
class _Stream(Generic[Payload]):
    waiting: deque[tuple[int, Chunk[Payload]]] = field(default_factory=deque)
    runs_dry: float | None = None  # when a player that never pauses has played all that was sent; None: nothing sent


class StepScheduler(Generic[Payload]):
    """Waiting chunks and one playback clock a stream. ``step_streams`` streams a step."""

    def __init__(self, step_streams: int) -> None:
        if step_streams < 1:
            raise ValueError(f"step_streams: {step_streams} is below 1")
        self._step_streams = step_streams
        self._streams: dict[int, _Stream[Payload]] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        """Chunks waiting."""
        return sum(len(stream.waiting) for stream in self._streams.values())

    @property
    def streams(self) -> int:
        """Streams known: with a chunk waiting, or sent and not yet removed."""
        return len(self._streams)

    def add(self, chunk: Chunk[Payload]) -> None:
        """Queue a chunk behind the earlier chunks of its stream."""
        if chunk.frames < 0:
            raise ValueError(f"frames: {chunk.frames} is below 0")
        self._streams.setdefault(chunk.stream, _Stream()).waiting.append((self._arrivals, chunk))
        self._arrivals += 1

    def next_step(self) -> list[Chunk[Payload]]:
        """Take the chunks of the next step: one a stream, all of the same ``frames``; empty only when nothing waits."""
        heads = sorted(
            (stream.runs_dry is not None, stream.runs_dry or 0.0, *stream.waiting[0][:1], name)
            for name, stream in self._streams.items()
            if stream.waiting
        )
        if not heads:
            return []
        names = [head[-1] for head in heads]
        frames = self._streams[names[0]].waiting[0][1].frames
        peers = [name for name in names if self._streams[name].waiting[0][1].frames == frames]
        return [self._streams[name].waiting.popleft()[1] for name in peers[: self._step_streams]]

    def sent(self, stream: int, seconds: float, now: float) -> float | None:
        """Audio of ``seconds`` left for the client at ``now`` (seconds of a monotonic clock).

        Returns the margin: the seconds of audio the client still had, negative where it ran dry (then playback goes
        on from ``now``); None for the first audio and for a stream that was removed meanwhile. No audio changes
        nothing.
        """
        state = self._streams.get(stream)
        if state is None or not seconds:
            return None
        margin = None if state.runs_dry is None else state.runs_dry - now
        start = now if state.runs_dry is None else max(state.runs_dry, now)
        state.runs_dry = start + seconds
        return margin

    def remove(self, stream: int) -> list[Chunk[Payload]]:
        """Forget a stream, known or not, and return its chunks that were still waiting."""
        state = self._streams.pop(stream, None)
        return [] if state is None else [chunk for _, chunk in state.waiting]
