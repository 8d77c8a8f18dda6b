"""Nothing grows with the number of requests."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np

from client import AsyncSpeechClient
from tests.server.live import LiveServer
from tests.server.loop import run_async
from tests.server.texts import HOP

WARM_UP = 200
REQUESTS = 1000
CONCURRENCY = 16
SAMPLES = 20
#: KiB a request. A leaked request of ours would be far more than this: its prompt rows alone are 1.3 KiB, its codes
#: and samples 8 KiB a frame. Below it lies what an allocator does over a minute: a heap of 300 MiB that grows by 1 MiB
#: once, for whatever reason, is 1 KiB a request here.
LIMIT = 2.0


def resident(pid: int) -> float:
    """Resident memory of a process in KiB, shared memory with the server included."""
    status = Path("/proc", str(pid), "status").read_text()
    return float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


def test_memory_is_flat_over_1000_requests(server: LiveServer) -> None:
    """Least-squares slope of each process's resident memory over the requests after a warm-up."""
    processes = {"tritonserver": server.triton_pid, **server.stages}
    counts: list[int] = []
    sizes: dict[str, list[float]] = {name: [] for name in processes}

    async def speak(client: AsyncSpeechClient, total: int, every: int) -> None:
        turn = asyncio.Semaphore(CONCURRENCY)
        done = 0

        async def one(number: int) -> None:
            nonlocal done
            async with turn:
                speech = await client.synthesize("Hi.", seed=number, max_frames=2)
            assert len(speech.audio) == 2 * HOP
            done += 1
            if done % every == 0:
                counts.append(done)
                for name, pid in processes.items():
                    sizes[name].append(resident(pid))

        await asyncio.gather(*(one(number) for number in range(total)))

    async def work() -> None:
        async with AsyncSpeechClient(server.url, chunk_timeout=60) as client:
            await speak(client, WARM_UP, WARM_UP + 1)
            await speak(client, REQUESTS, REQUESTS // SAMPLES)

    began = time.monotonic()
    run_async(work())
    print(f"\n{REQUESTS} requests after {WARM_UP}, {time.monotonic() - began:.0f} s")
    slopes = {name: float(np.polyfit(counts, values, 1)[0]) for name, values in sizes.items()}
    for name, slope in slopes.items():
        first, last = sizes[name][0] / 1024, sizes[name][-1] / 1024
        print(f"{name:<14}{first:8.1f} MiB at first {last:8.1f} MiB at last {slope:+.3f} KiB a request")
    assert max(slopes.values()) < LIMIT, slopes
