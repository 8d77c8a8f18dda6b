"""What a result needs beside its numbers: when, with which options, on which device."""

from __future__ import annotations

import argparse
import platform
import time
from typing import Any

import torch

from client.bench.machine import cpu_model


def sitting(options: argparse.Namespace) -> dict[str, Any]:
    """For the top of a result file. Where it is written to is no part of it."""
    gpu = str(getattr(options, "device", "cuda")).startswith("cuda") and torch.cuda.is_available()
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "options": {key: str(value) for key, value in sorted(vars(options).items()) if key != "json"},
        "device": torch.cuda.get_device_name() if gpu else cpu_model(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
