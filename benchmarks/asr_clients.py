"""Clients in processes of their own, for loads that one Python process cannot make; each a part of one closed loop.

A process is told by lines of JSON on its standard input what to send, and answers with a line of records. Its input
ends when its parent does, and then it ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from client.bench.clips import BUILT_IN, Clip
from client.bench.load import Load
from client.bench.transcripts import TranscriptRecord, TranscriptWorkload
from client.request import TranscriptionRequest
from client.transcript import TranscriptStream

ROOT = Path(__file__).resolve().parents[1]
RATE = 16_000
_PAUSE_S, _START_S, _END_S = 0.3, 60.0, 10.0


@dataclass(frozen=True)
class Job:
    """What all clients send. ``unseen``: no two requests bring the same samples; ``patience``: seconds to wait for an
    answer before it counts as lost."""

    url: str
    seconds: float
    clips: int
    language: str
    unseen: bool
    patience: float


@dataclass(frozen=True)
class Part:
    """What one client sent in a level. Times of the records are of the machine's monotonic clock."""

    records: list[TranscriptRecord]
    cpu: float


@dataclass(frozen=True)
class SampleWorkload(TranscriptWorkload):
    """Raw samples, float32 [n] at 16 kHz a clip. Where no two requests may bring the same, each takes a number of
    ``marks`` and spells it in four samples below -60 dB of full scale."""

    samples: Sequence[np.ndarray] = ()
    marks: Iterator[int] = field(default_factory=itertools.count)

    def stream(self, client: Any, index: int) -> TranscriptStream:
        audio = self.samples[index % len(self.samples)]
        if self.unseen:
            audio, number = audio.copy(), next(self.marks)
            for spot in range(4):
                audio[spot] = ((number >> 5 * spot & 31) - 16) / 32768
        return client.stream(dataclasses.replace(self.request, audio=audio, sample_rate=RATE))


def spoken(count: int, seconds: float) -> list[np.ndarray]:
    """``count`` clips float32 [seconds * 16000]: the built-in voices one after the other, from another place each."""
    import soundfile

    parts = [soundfile.read(path, dtype="float32")[0] for path in sorted(BUILT_IN.glob("*.flac"))]
    pause = np.zeros(round(_PAUSE_S * RATE), np.float32)
    loop = np.concatenate([piece for part in parts for piece in (part, pause)])
    length = round(seconds * RATE)
    endless = np.tile(loop, -(-length // len(loop)) + 1)
    return [endless[start : start + length].copy() for start in (i * len(loop) // count for i in range(count))]


class Clients:
    """The processes, for as long as a ``with`` block."""

    def __init__(self, job: Job, places: int) -> None:
        self._answers: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._job, self._until = job, 0.0
        self._processes = []
        for place in range(places):
            command = [sys.executable, "-m", "benchmarks.asr_clients", json.dumps(dataclasses.asdict(job))]
            command += [str(place), str(places)]
            pipe = subprocess.PIPE
            self._processes.append(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
        for place, process in enumerate(self._processes):
            threading.Thread(target=self._listen, args=(place, process.stdout), daemon=True).start()
        self.pids = {f"client {place}": process.pid for place, process in enumerate(self._processes)}

    def __enter__(self) -> Clients:
        try:
            self._collect(len(self._processes), _START_S)  # each says that it is there
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self, concurrency: int, begin: float, seconds: float, requests: int | None = None) -> int:
        """Begin a closed loop of ``concurrency`` requests at ``begin`` (monotonic), for ``seconds`` or until each
        process has sent ``requests``. Returns how many processes take part."""
        places, self._until = len(self._processes), begin + seconds
        shares = [concurrency // places + (place < concurrency % places) for place in range(places)]
        for process, share in zip(self._processes, shares, strict=True):
            if share:
                assert process.stdin is not None
                order = {"concurrency": share, "begin": begin, "requests": requests, "seconds": seconds}
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
        return sum(share > 0 for share in shares)

    def parts(self, count: int) -> list[Part]:
        """What ``count`` processes sent in the level that was started, once it is over. Raises RuntimeError when one of
        them does not say."""
        found, left = [], max(0.0, self._until - time.monotonic())
        for answer in self._collect(count, left + 2 * self._job.patience):
            records = [
                TranscriptRecord(**{**each, "chunks": tuple(map(tuple, each["chunks"]))}) for each in answer["records"]
            ]
            found.append(Part(records, answer["cpu"]))
        return found

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
            process.wait()

    def _collect(self, count: int, seconds: float) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        found: list[dict[str, Any]] = []
        for _ in range(count):
            try:
                place, line = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"{count - len(found)} of {count} clients said nothing for {seconds:g} s") from None
            if not line:
                raise RuntimeError(f"client {place} ended before its answer")
            found.append(json.loads(line))
        return found

    def _listen(self, place: int, lines: Any) -> None:
        for line in lines:
            self._answers.put((place, line))
        self._answers.put((place, ""))


async def _serve(job: Job, place: int, places: int, answer: Any) -> None:
    clips = [Clip(str(number), b"", job.seconds) for number in range(job.clips)]
    request = TranscriptionRequest(b"", language=job.language or None, temperature=0.0)
    samples, marks = spoken(job.clips, job.seconds), itertools.count(place, places)
    work = SampleWorkload(clips, request, job.unseen, samples, marks)
    limits = {"first_chunk_timeout": job.patience, "chunk_timeout": job.patience}
    async with work.client(job.url, None, **limits) as client:
        await client.metadata()
        _say(answer, {"ready": place})
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            await asyncio.sleep(max(0.0, order["begin"] - time.monotonic()))
            load, cpu = Load(client, work), time.process_time()
            await load.closed(order["concurrency"], order["requests"], order["seconds"])
            share = (time.process_time() - cpu) / max(load.now, 1e-9)
            _say(answer, {"records": list(_absolute(load)), "cpu": share})


def _absolute(load: Load) -> Iterator[dict[str, Any]]:
    """The records with times of the machine's clock, which all processes share."""
    records: Sequence[Any] = load.records
    for record in records:
        times = {name: getattr(record, name) + load.start for name in ("due", "sent", "ended")}
        chunks = [(at + load.start, size) for at, size in record.chunks]
        yield {**vars(record), **times, "chunks": chunks}


def _say(answer: Any, what: dict[str, Any]) -> None:
    answer.write(json.dumps(what) + "\n")
    answer.flush()


def main() -> None:
    """A client process: what to send, its place among the clients, and how many these are."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints is no answer
    job, place, places = Job(**json.loads(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_serve(job, place, places, answer))
    os._exit(0)  # gRPC's threads may linger


if __name__ == "__main__":
    main()
