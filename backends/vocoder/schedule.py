"""Which waiting chunks make the next step. Pure: the caller passes the time in, and nothing here touches a tensor.

Order: first chunks in order of arrival, because somebody is waiting in silence; then the streams that are closest to
running dry. The most urgent chunk leads the step, and chunks of other streams with the same number of frames fill it,
most urgent first. The chunks themselves are as the request's schedule cut them, so load changes when a chunk is
decoded and never what it is.

Holding: with ``hold_seconds`` a step that is not full may wait for company, and only where waiting costs nothing: no
first chunk in it, every client in it with more audio to play than the wait and ``RESERVE_SECONDS`` together, and some
other stream that could still bring a chunk. Other steps run meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Payload = TypeVar("Payload")

#: Audio that a client must have left beyond a wait: for the step itself, and the way to the client.
RESERVE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Chunk(Generic[Payload]):
    """``frames`` frames of ``stream``, waiting; ``payload`` is the caller's."""

    stream: int
    frames: int
    payload: Payload


@dataclass(slots=True)
class _Stream(Generic[Payload]):
    waiting: deque[tuple[int, float, Chunk[Payload]]] = field(default_factory=deque)
    runs_dry: float | None = None  # when a player that never pauses has played all that was sent; None: nothing sent


class StepScheduler(Generic[Payload]):
    """Waiting chunks and one playback clock a stream. ``step_streams`` streams a step, ``hold_seconds`` the longest
    wait for company; 0: none."""

    def __init__(self, step_streams: int, hold_seconds: float = 0.0) -> None:
        if step_streams < 1:
            raise ValueError(f"step_streams: {step_streams} is below 1")
        if not 0 <= hold_seconds < math.inf:
            raise ValueError(f"hold_seconds: {hold_seconds} is not a number of at least 0")
        self._step_streams, self._hold_seconds = step_streams, hold_seconds
        self._streams: dict[int, _Stream[Payload]] = {}
        self._arrivals = 0
        self._held_from: dict[int, float] = {}  # by frames: when a step was first held
        #: Seconds for which the step taken last was held; 0.0: not at all.
        self.held_seconds = 0.0

    def __len__(self) -> int:
        """Chunks waiting."""
        return sum(len(stream.waiting) for stream in self._streams.values())

    @property
    def streams(self) -> int:
        """Streams known: with a chunk waiting, or sent and not yet removed."""
        return len(self._streams)

    def add(self, chunk: Chunk[Payload], now: float = 0.0) -> None:
        """Queue a chunk behind the earlier chunks of its stream. ``now`` is when a wait for company would begin."""
        if chunk.frames < 0:
            raise ValueError(f"frames: {chunk.frames} is below 0")
        waiting = self._streams.setdefault(chunk.stream, _Stream()).waiting
        waiting.append((self._arrivals, now, chunk))
        self._arrivals += 1

    def delay(self, now: float) -> float | None:
        """Seconds until a step may run; 0.0: now; None: nothing waits."""
        steps = self._steps()
        return max(0.0, min(self._held_until(step) for step in steps) - now) if steps else None

    def next_step(self, now: float = math.inf) -> list[Chunk[Payload]]:
        """Take the chunks of the next step: one a stream, all of the same ``frames``. Empty when nothing waits, or
        when all that waits is held at ``now``; without ``now`` nothing is held."""
        for names in self._steps():
            frames = self._streams[names[0]].waiting[0][2].frames
            if self._held_until(names) > now:
                self._held_from.setdefault(frames, now)
                continue
            since = self._held_from.pop(frames, now)
            self.held_seconds = now - since if now < math.inf else 0.0
            return [self._streams[name].waiting.popleft()[2] for name in names]
        return []

    def _steps(self) -> list[list[int]]:
        """The steps that the waiting chunks could make, most urgent first: streams by name."""
        heads = sorted(
            (stream.runs_dry is not None, stream.runs_dry or 0.0, stream.waiting[0][0], name)
            for name, stream in self._streams.items()
            if stream.waiting
        )
        steps: dict[int, list[int]] = {}
        for *_, name in heads:
            peers = steps.setdefault(self._streams[name].waiting[0][2].frames, [])
            if len(peers) < self._step_streams:
                peers.append(name)
        return list(steps.values())

    def _held_until(self, names: list[int]) -> float:
        """When the step of these streams runs even without further company; -inf: it does not wait."""
        dry = [self._streams[name].runs_dry for name in names]
        known = [at for at in dry if at is not None]
        if not self._hold_seconds or len(names) >= min(self._step_streams, len(self._streams)) or len(known) < len(dry):
            return -math.inf
        since = min(self._streams[name].waiting[0][1] for name in names)
        return min(since + self._hold_seconds, min(known) - RESERVE_SECONDS)

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
        return [] if state is None else [chunk for *_, chunk in state.waiting]
