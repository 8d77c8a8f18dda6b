"""Weights that are numbers: one NaN turns every sum it meets into NaN, and the server would go on serving silence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from backends.errors import CheckpointError


def check_finite(tensor: Tensor, name: str, source: str, dtype: torch.dtype) -> None:
    """Raise CheckpointError where the tensor ``name`` of ``source`` holds NaN, infinity, or what ``dtype`` cannot."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    if tensor.element_size() < 2:  # no minimum of an 8-bit float
        tensor = tensor.float()
    # NaN passes through minimum and maximum. One pass, nothing allocated: isfinite takes ten times as long.
    bounds: list[float] = torch.stack(torch.aminmax(tensor)).tolist()
    if not all(math.isfinite(bound) for bound in bounds):
        count = int((~torch.isfinite(tensor)).sum())
        raise CheckpointError(f"{source}: {name} holds {count} of {tensor.numel()} values that are not finite")
    most, limit = max(map(abs, bounds)), torch.finfo(dtype).max
    if most > limit:
        raise CheckpointError(f"{source}: {name} holds {most:g}, above {limit:g}, the largest number in {dtype}")
