"""What every codec asks of codes before it looks anything up."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.errors import InvalidArgument


def check_codes(codes: Tensor, codebooks: int, entries: int) -> None:
    """InvalidArgument unless ``codes`` is an integer tensor [T, codebooks] with values in [0, entries)."""
    if codes.ndim != 2 or codes.shape[1] != codebooks:
        raise InvalidArgument("codes", f"shape {list(codes.shape)} is not [frames, {codebooks}]")
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise InvalidArgument("codes", f"dtype {codes.dtype} is not an integer type")
    if codes.numel():
        low, high = (int(value) for value in codes.aminmax())
        if low < 0:
            raise InvalidArgument("codes", f"{low} is below 0, the smallest code")
        if high >= entries:
            raise InvalidArgument("codes", f"{high} is above {entries - 1}, the largest code")
