"""Rings of keys and values: torch and triton's interpreter against float64, and any cut against any other."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from backends.kernels import norm, ring
from tests.kernel_cases import interpreted, skip_truncation
from tests.ring_cases import RingCase, check_accumulate, check_ring, check_ring_invariance

CUTS = [[130], [1] * 130, [31, 1, 8, 30, 30, 17, 13]]


def module(kind: str, name: str) -> ModuleType:
    return {"ring": ring, "norm": norm}[name] if kind == "torch" else interpreted(name)


@pytest.mark.parametrize("sizes", CUTS[1:], ids=len)
@pytest.mark.parametrize("block", [16, 64])
def test_ring_equals_float64(kind: str, sizes: list[int], block: int) -> None:
    check_ring(
        module(kind, "ring"), RingCase("cpu", torch.float32, window=50, block=block, lines=80, length=130), sizes
    )


# The interpreter of triton 3.6 multiplies bfloat16 as integers in tl.dot: that is left to the GPU.
@pytest.mark.parametrize(
    ("kind", "dtype"), [("torch", torch.bfloat16), ("torch", torch.float16), ("triton", torch.float16)]
)
def test_half_precision(kind: str, dtype: torch.dtype) -> None:
    check_ring(module(kind, "ring"), RingCase("cpu", dtype, heads=3, window=33, lines=64, length=70), [32, 7, 1, 30])


def test_the_kernel_does_not_see_cuts_or_company() -> None:
    case = RingCase("cpu", torch.float32, window=50, lines=179, length=130)
    check_ring_invariance(interpreted("ring"), case, CUTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accumulate_layer_norm(kind: str, dtype: torch.dtype) -> None:
    skip_truncation(kind, dtype)
    check_accumulate(module(kind, "norm"), "cpu", dtype, 3, 768)


def test_a_ring_that_is_too_short_is_refused() -> None:
    case = RingCase("cpu", torch.float32, lines=100, window=70)
    with pytest.raises(ValueError, match="need 101 lines, there are 100"):
        case.stream(ring, 0, [32])
