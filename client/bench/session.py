"""A whole measurement: level after level against one server, each with a warm-up, its CPU share and its counters."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from client.bench.level import Level, Tally
from client.bench.load import Load
from client.bench.metrics import Metrics, read_metrics
from client.bench.progress import LoadProgress
from client.bench.record import Record
from client.bench.schedule import arrival_times
from client.bench.workload import Workload
from client.connection import Connection

TIMELINE = "timeline"


@dataclass(frozen=True)
class Plan:
    """What to measure. Either ``concurrencies`` or ``rates`` (requests a second) has the levels.

    requests, seconds  how much of each level: one of them, or for rates both
    warmup             requests before each level that are not counted; None: as many as run at once, 4 for a rate
    """

    concurrencies: tuple[int, ...]
    rates: tuple[float, ...]
    requests: int | None
    seconds: float | None
    warmup: int | None
    arrivals: str
    arrival_seed: int
    max_outstanding: int | None


@dataclass
class Session:
    """Measures ``plan`` with the requests of ``workload``. After ``run``, or while it is interrupted, the rest has what
    there is.

    server       metadata of the server and of the model, as Triton gives it
    levels       one a level; an interrupted one is the last
    records      the records of each level
    interrupted  True after Ctrl-C or SIGTERM
    """

    plan: Plan
    url: str
    model: str | None
    timeouts: dict[str, Any]
    workload: Workload[Any, Any]
    metrics_address: str
    server: dict[str, Any] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    records: list[list[Record]] = field(default_factory=list)
    interrupted: bool = False
    metrics_problem: str = ""

    @property
    def has_timeline(self) -> bool:
        """Whether the model's metadata lists the output ``timeline``."""
        return TIMELINE in self._outputs()

    def run(self) -> None:
        """Measure. Raises ConnectionFailed or ServerError when the server does not answer the first question."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        work = asyncio.ensure_future(self._levels())
        with _on_signals(work.cancel):
            try:
                await work
            except asyncio.CancelledError:
                if not work.cancelled():
                    raise
                self.interrupted = True

    async def _levels(self) -> None:
        async with self.workload.client(self.url, self.model, **self.timeouts) as client:
            self.server = {"url": self.url, **await client.metadata()}
        # All outputs by name: without names Triton sends all too, but an older server has no timeline to ask for.
        outputs = self._outputs() if self.has_timeline else None
        async with self.workload.client(self.url, self.model, outputs=outputs, **self.timeouts) as client:
            for concurrency in self.plan.concurrencies:
                await self._level(client, f"c={concurrency}", concurrency, None)
            for rate in self.plan.rates:
                await self._level(client, f"{rate:g}/s", 4, rate)

    async def _level(self, client: Connection, label: str, concurrency: int, rate: float | None) -> None:
        plan = self.plan
        warmup = concurrency if plan.warmup is None else plan.warmup
        if warmup:
            # From the end of the list, so that a long list warms no cache for the requests that count.
            warm = Load(client, self.workload.reversed())
            await _watched(f"{label} warm-up", warm, warm.closed(min(concurrency, warmup), warmup, None))
        before = await self._scrape()
        load = Load(client, self.workload)
        cpu = time.process_time()
        if rate is None:
            work = load.closed(concurrency, plan.requests, plan.seconds)
        else:
            times = arrival_times(rate, plan.seconds, plan.requests, plan.arrivals, plan.arrival_seed)
            work = load.open(times, plan.max_outstanding)
        window = plan.seconds if plan.requests is None else None
        metrics: dict[str, float] | None = None
        cut = False
        cpu_share = 0.0
        try:
            try:
                await _watched(label, load, work)
            except asyncio.CancelledError:
                cut = True
                raise
            finally:
                cpu_share = (time.process_time() - cpu) / max(load.now, 1e-9)
                window = min(window, load.now) if window is not None and cut else window
            if before is not None and (after := await self._scrape()) is not None:
                metrics = after.since(before)
        finally:
            if load.records or not cut:
                self.records.append(load.records)
                tally = Tally(label, load.started, load.skipped, rate, window, cpu_share, metrics)
                self.levels.append(self.workload.level(tally, load.records))

    async def _scrape(self) -> Metrics | None:
        if self.metrics_problem:
            return None
        try:
            found = await asyncio.to_thread(read_metrics, self.metrics_address, self.workload.others)
        except (OSError, ValueError) as error:
            self.metrics_problem = f"{self.metrics_address} could not be read ({error})."
            return None
        if not found.values:
            self.metrics_problem = f"{self.metrics_address} has no voxstage_* metrics."
            return None
        return found

    def _outputs(self) -> list[str]:
        return [output["name"] for output in self.server.get("model", {}).get("outputs", [])]


async def _watched(label: str, load: Load, work: Coroutine[Any, Any, None]) -> None:
    progress = LoadProgress(label, load)
    watcher = asyncio.ensure_future(progress.watch())
    try:
        await work
    finally:
        watcher.cancel()
        progress.show(last=True)


@contextlib.contextmanager
def _on_signals(stop: Callable[[], Any]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call ``stop`` inside the block, where the loop and the thread allow it."""
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            handler = signal.getsignal(number)
            loop.add_signal_handler(number, stop)
            before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)  # removing alone would put back Python's default, not what was there
