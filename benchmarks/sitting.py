"""What a result needs beside its numbers: when, with which options, on which device."""

from __future__ import annotations

import argparse
import platform
import time
from typing import Any

import torch


def sitting(options: argparse.Namespace) -> dict[str, Any]:
    """For the top of a result file. Where it is written to is no part of it."""
    if str(getattr(options, "device", "cuda")).startswith("cuda") and torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        from client.bench.machine import cpu_model  # with the client comes tritonclient, which not every machine has

        device = cpu_model()
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "options": {key: str(value) for key, value in sorted(vars(options).items()) if key != "json"},
        "device": device,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
