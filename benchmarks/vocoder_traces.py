"""Live streams on a vocoder in real time: arrivals and chunks are simulated, decoding is not."""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections import Counter
from typing import Any

import torch

from backends.decoder.chunks import ChunkSchedule
from backends.vocoder.engine import CodeChunk
from backends.vocoder.schedule import Chunk, StepScheduler
from backends.vocoder.streaming import StreamingVocoder

_MEAN_FRAMES = 60


class Trace:
    """When which stream's next chunk is there: a heap of (seconds, stream, frames, last)."""

    def __init__(self, live: int, poisson: bool, seconds: float, frame_seconds: float, rate: float) -> None:
        self._random = random.Random(live)
        self._frame_seconds, self._rate, self._seconds = frame_seconds, rate, seconds
        self.poisson, self.events, self._streams = poisson, list[tuple[float, int, int, bool]](), 0
        if poisson:
            # As many arrivals as keep ``live`` streams alive on average: a stream lives as long as it is decoded.
            mean, now = _MEAN_FRAMES * frame_seconds * rate, 0.0
            while (now := now + self._random.expovariate(live / mean)) < seconds:
                self.start(now)
        else:
            for _ in range(live):
                self.start(self._random.random())

    def start(self, now: float) -> None:
        """A stream begins: its chunks come as a decoder at the trace's rate makes them."""
        left = max(1, round(self._random.expovariate(1 / _MEAN_FRAMES)))
        schedule = ChunkSchedule(4, 25)
        self._streams += 1
        while left:
            frames = min(schedule.next_size(), left)
            schedule.take(frames)
            left -= frames
            now += frames * self._frame_seconds * self._rate
            heapq.heappush(self.events, (now, self._streams, frames, not left))

    def ended(self, now: float) -> None:
        """With a constant number of streams another takes the place of one that ended."""
        if not self.poisson and now < self._seconds:
            self.start(now)


def run_trace(vocoder: StreamingVocoder, live: int, poisson: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Decode a trace in real time and say what its listeners heard."""
    codec = vocoder.codec
    frame_seconds = codec.hop / codec.sampling_rate
    trace = Trace(live, poisson, options.trace_seconds, frame_seconds, options.rate)
    codes = torch.randint(codec.entries, (vocoder.max_step_frames, codec.codebooks))
    steps: StepScheduler[Any] = StepScheduler(vocoder.step_streams)
    before = dict(vocoder.metrics.step_shapes.values)
    slots: dict[int, int] = {}
    margins: list[float] = []
    waits: list[float] = []
    taken, busy, unserved = 0, 0.0, 0
    begin = time.perf_counter()
    while trace.events or len(steps):
        now = time.perf_counter() - begin
        while trace.events and trace.events[0][0] <= now:
            due, stream, frames, last = heapq.heappop(trace.events)
            if stream not in slots:
                if vocoder.state.free == 0:
                    unserved += 1
                    continue
                slots[stream] = vocoder.open()
            steps.add(Chunk(stream, frames, (due, last)))
        step = steps.next_step()
        if not step:
            time.sleep(max(0.0, trace.events[0][0] - now) if trace.events else 0.0)
            continue
        started = time.perf_counter()
        results = vocoder.decode_each([CodeChunk(slots[each.stream], codes[: each.frames]) for each in step])
        now = time.perf_counter()
        busy += now - started
        taken += len(step)
        for each, audio in zip(step, results, strict=True):
            assert isinstance(audio, torch.Tensor), audio
            waits.append(now - begin - each.payload[0])
            margin = steps.sent(each.stream, each.frames * frame_seconds, now)
            if margin is not None:
                margins.append(margin)
            if each.payload[1]:
                steps.remove(each.stream)
                vocoder.close(slots.pop(each.stream))
                trace.ended(now - begin)
    wall = time.perf_counter() - begin
    shapes = {key: value - before.get(key, 0.0) for key, value in vocoder.metrics.step_shapes.values.items()}
    counts = Counter({key: int(value) for key, value in shapes.items() if value})
    total = max(1, sum(counts.values()))
    waits = sorted(waits) or [0.0]
    return {
        "live": live,
        "arrivals": "poisson" if poisson else "constant",
        "seconds": round(wall, 1),
        "streams": trace._streams,
        "chunks": taken,
        "steps": total,
        "streams_a_step": round(taken / total, 2),
        "graph_share": round(sum(n for (_, _, run), n in counts.items() if run == "graph") / total, 4),
        "busy_share": round(busy / wall, 3),
        "chunk_ms_p50": round(1e3 * waits[len(waits) // 2], 2),
        "chunk_ms_p99": round(1e3 * waits[int(len(waits) * 0.99)], 2),
        "underruns": sum(margin < 0 for margin in margins),
        "worst_margin_ms": round(1e3 * min(margins), 1) if margins else None,
        "without_a_slot": unserved,
        "steps_by_shape": {f"B={b} T={t} {run}": n for (b, t, run), n in counts.most_common()},
    }
