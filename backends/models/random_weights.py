"""Modules with seeded random weights, for benchmarks at published sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def random_module(
    build: Callable[[], Module], device: torch.device, dtype: torch.dtype, deviation: float, seed: int
) -> Module:
    """What ``build`` makes, on ``device`` and frozen: norms pass their input on, all else is normal around 0."""
    with torch.device("meta"):
        module = build()
    module = module.to(dtype).to_empty(device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name or ".ln_" in name:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, deviation, generator=generator)
    return module.eval().requires_grad_(False)
