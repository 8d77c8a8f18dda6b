"""Driving a server: requests out, records back. Closed loop (so many at a time) and open loop (at a rate)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace

from client.aio import AsyncSpeechClient
from client.bench.record import OK, Record
from client.chunk import AudioChunk
from client.errors import Cancelled, SpeechError
from client.request import SpeechRequest

#: A worker of a closed loop waits this long after an error: a server that is full answers within milliseconds, and
#: asking again at once would measure nothing but refusals.
PAUSE_S = 0.1


@dataclass
class Load:
    """One level under way. ``records`` grows as requests end and may be read at any moment.

    client   where the requests go
    texts    request i says text i mod len(texts)
    request  sampling, chunks and format of every request; request i has its seed plus i
    start    time.monotonic() in seconds: the origin of all times in the records
    started  requests that went out; skipped: arrivals that found --max-outstanding requests inside
    """

    client: AsyncSpeechClient
    texts: Sequence[bytes]
    request: SpeechRequest
    records: list[Record] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)
    started: int = 0
    skipped: int = 0

    @property
    def now(self) -> float:
        return time.monotonic() - self.start

    async def closed(self, concurrency: int, requests: int | None, seconds: float | None) -> None:
        """``concurrency`` workers, each with one request inside at a time, until ``requests`` have gone out or
        ``seconds`` have passed; what is inside then is waited for."""

        async def worker() -> None:
            while (requests is None or self.started < requests) and (seconds is None or self.now < seconds):
                record = await self._send(self.started, None)
                if not record.ok:
                    await asyncio.sleep(PAUSE_S)

        await _all([worker() for _ in range(concurrency)])

    async def open(self, arrivals: Sequence[float], max_outstanding: int | None) -> None:
        """A request at each of the ``arrivals``, however the earlier ones are doing; then wait for all of them."""
        inside: set[asyncio.Task[Record]] = set()
        failed: list[BaseException] = []

        def over(task: asyncio.Task[Record]) -> None:
            inside.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                failed.append(error)

        try:
            for index, due in enumerate(arrivals):
                if (wait := due - self.now) > 0:
                    await asyncio.sleep(wait)
                if failed:
                    break
                if max_outstanding is not None and len(inside) >= max_outstanding:
                    self.skipped += 1
                    continue
                task = asyncio.create_task(self._send(index, due))
                inside.add(task)
                task.add_done_callback(over)
            while inside and not failed:
                await asyncio.wait(inside)
        finally:
            await _cancel(inside)
        if failed:
            raise failed[0]

    async def _send(self, index: int, due: float | None) -> Record:
        """One request from beginning to end. Raises only what is a fault of this program."""
        self.started += 1
        seed = self.request.seed
        request = replace(
            self.request,
            text=self.texts[index % len(self.texts)],
            seed=None if seed is None else seed + index,
        )
        chunks: list[AudioChunk] = []
        arrived: list[tuple[float, int]] = []
        kind, message, ended = OK, "", 0.0
        stream = self.client.stream(request)
        try:
            async with stream:
                async for chunk in stream:
                    arrived.append((chunk.received_at - self.start, chunk.samples))
                    chunks[:] = [chunk]  # the last one has all that is still of use; audio would fill the memory
            ended = arrived[-1][0]
            if chunks[-1].finish_reason == "cancelled":
                kind, message = Cancelled.code, "The server cancelled the stream."
        except SpeechError as error:
            kind, message = error.code, str(error)
            ended = (error.received_at or time.monotonic()) - self.start
        sent = stream.started_at - self.start
        record = Record(
            index=index,
            due=sent if due is None else due,
            sent=sent,
            ended=ended,
            kind=kind,
            message=message,
            finish_reason=chunks[-1].finish_reason if chunks else "",
            sample_rate=chunks[-1].sample_rate if chunks else 0,
            chunks=tuple(arrived),
            timeline=chunks[-1].timeline if chunks else None,
        )
        self.records.append(record)
        return record


async def _all(work: Sequence[Coroutine[object, object, None]]) -> None:
    """Wait for all; when one fails, or the wait is cancelled, the others are cancelled and over before this returns."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(set(tasks))


async def _cancel(tasks: set[asyncio.Task[Record]] | set[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()
    if tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*list(tasks), return_exceptions=True)
