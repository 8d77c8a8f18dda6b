"""What a stretch of time cost: CPU seconds of processes, and how busy the GPU was. Linux; nothing to install."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE_MS = 200


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """By name: user and system time so far of all threads, and of processes that it started and that are not named
    themselves. A process that has gone is left out."""
    parents, spent = dict[int, int](), dict[int, float]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # Behind the name, which may hold anything: fields 4, 14 and 15 of proc(5), counted from 3.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    named = set(pids.values())

    def total(pid: int) -> float:
        own = [other for other, parent in parents.items() if parent == pid and other not in named]
        return spent[pid] + sum(map(total, own))

    return {name: total(pid) for name, pid in pids.items() if pid in spent}


class GpuWatch:
    """``busy``: the mean of what nvidia-smi says every 0.2 s, in percent of time with a kernel running; None where
    there is no nvidia-smi."""

    def __init__(self) -> None:
        self.busy: float | None = None

    @contextlib.contextmanager
    def watching(self, on: bool) -> Iterator[None]:
        """Sample inside the block."""
        command = ["nvidia-smi", "-i", "0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        watch: subprocess.Popen[str] | None = None
        if on:
            with contextlib.suppress(OSError):
                watch = subprocess.Popen(
                    [*command, "-lms", str(_SAMPLE_MS)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                )  # fmt: skip
        try:
            yield
        finally:
            if watch is not None:
                watch.kill()
                samples = [float(line) for line in watch.communicate(timeout=10)[0].split() if line.isdigit()]
                self.busy = sum(samples) / len(samples) if samples else None
