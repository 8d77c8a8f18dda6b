"""Norms, activations, q/k/v and frame attention: torch and triton's interpreter against float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from backends.kernels import activation, frame, norm, rope
from tests.kernel_cases import (
    HEADS,
    check_activations,
    check_frame_attention,
    check_norms,
    check_qk_norm_rope_store,
    interpreted,
    skip_truncation,
)

MODULES = {"activation": activation, "frame": frame, "norm": norm, "rope": rope}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def module(kind: str, name: str) -> ModuleType:
    return MODULES[name] if kind == "torch" else interpreted(name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [384, 2560])
def test_norms(kind: str, dtype: torch.dtype, dim: int) -> None:
    skip_truncation(kind, dtype)
    check_norms(module(kind, "norm"), "cpu", dtype, 3, dim)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [96, 1536])
def test_activations(kind: str, dtype: torch.dtype, inner: int) -> None:
    check_activations(module(kind, "activation"), "cpu", dtype, 3, inner)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_qk_norm_rope_store(kind: str, dtype: torch.dtype, heads: tuple[int, int]) -> None:
    dim = 64 if heads[0] == heads[1] else 128
    check_qk_norm_rope_store(module(kind, "rope"), "cpu", dtype, heads, dim, 16, 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rope", [False, True])
def test_frame_attention(kind: str, dtype: torch.dtype, rope: bool) -> None:
    check_frame_attention(module(kind, "frame"), "cpu", dtype, 2, 3, 80, 5, rope)
    check_frame_attention(module(kind, "frame"), "cpu", dtype, 1, 2, 64, 13, rope)
