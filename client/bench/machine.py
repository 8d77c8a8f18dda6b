"""The machine that the client runs on. Says nothing about a server elsewhere."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "tritonclient", "grpcio")


def describe() -> dict[str, Any]:
    """CPU model, cores, GPUs (name and driver, where nvidia-smi answers), operating system and versions."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": gpus(),
        "system": platform.platform(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }


def cpu_model() -> str:
    """The name that Linux gives the first processor, else what the platform says."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpus() -> list[str]:
    """``name, driver version`` of every NVIDIA GPU; empty where nvidia-smi is missing or fails."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
