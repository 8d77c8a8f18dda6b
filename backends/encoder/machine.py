"""The GPU and the TensorRT of this machine, asked for without loading either. Standard library only."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/tensorrt/lib")
_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")


@dataclass(frozen=True)
class Machine:
    """The first GPU (None where there is none) and the version of the TensorRT that Triton would use (None: not
    found)."""

    gpu: str | None = None
    compute_capability: str | None = None
    driver: str | None = None
    tensorrt: str | None = None

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        gpu, capability, driver = _first_gpu()
        return cls(gpu, capability, driver, installed_tensorrt(_LIBRARIES))


def _first_gpu() -> tuple[str | None, str | None, str | None]:
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None, None, None
    parts = [part.strip() for part in answer.stdout.partition("\n")[0].split(",")]
    if answer.returncode != 0 or len(parts) != 3:
        return None, None, None
    return parts[0], parts[1], parts[2]


def installed_tensorrt(folders: Sequence[str]) -> str | None:
    """``libnvinfer.so.10.5.0`` -> ``10.5.0``: from the library's full name, in ``folders`` and LD_LIBRARY_PATH."""
    searched = [*folders, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    found = {
        match.group(1)
        for folder in searched
        if folder and Path(folder).is_dir()
        for path in Path(folder).glob("libnvinfer.so.*")
        if (match := re.fullmatch(r"libnvinfer\.so\.(\d+\.\d+\.\d+)", path.name))
    }
    return found.pop() if len(found) == 1 else None
