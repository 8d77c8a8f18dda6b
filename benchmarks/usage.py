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
    """By name: user and system time so far of all threads. A process that has gone is left out."""
    found = {}
    for name, pid in pids.items():
        with contextlib.suppress(OSError):
            # Behind the name, which may hold anything: fields 14 and 15 of proc(5), counted from 3.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


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
