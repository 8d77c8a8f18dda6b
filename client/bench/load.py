"""Driving a server: requests out, records back. Closed loop (so many at a time) and open loop (at a rate)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from client.bench.record import Record
from client.bench.workload import Outcome, Workload
from client.connection import Connection
from client.errors import Cancelled, SpeechError

#: A worker of a closed loop waits this long after an error: a server that is full answers within milliseconds, and
#: asking again at once would measure nothing but refusals.
PAUSE_S = 0.1


@dataclass
class Load:
    """One level under way. ``records`` grows as requests end and may be read at any moment.

    client    where the requests go
    workload  what they are
    start     time.monotonic() in seconds: the origin of all times in the records
    started   requests that went out; skipped: arrivals that found --max-outstanding requests inside
    """

    client: Connection
    workload: Workload[Any, Any]
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
        work, found = self.workload, Outcome[Any](index)
        stream = work.stream(self.client, index)
        try:
            async with stream:
                async for chunk in stream:
                    found.arrived.append((chunk.received_at - self.start, work.size(chunk)))
                    found.last = chunk  # the last one has all that is still of use; audio would fill the memory
            found.ended = found.arrived[-1][0]
            if found.last is not None and found.last.finish_reason == "cancelled":
                found.kind, found.message = Cancelled.code, "The server cancelled the stream."
        except SpeechError as error:
            found.kind, found.message = error.code, str(error)
            found.ended = (error.received_at or time.monotonic()) - self.start
        found.sent = stream.started_at - self.start
        found.due = found.sent if due is None else due
        record: Record = work.record(found)
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
