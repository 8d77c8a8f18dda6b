"""Gathering, embedding and handing on of rows: torch and triton's interpreter against plain loops."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from backends.kernels import step
from tests.kernel_cases import interpreted, skip_truncation
from tests.kernel_step_cases import check_embed_rows, check_step


def module(kind: str) -> ModuleType:
    return step if kind == "torch" else interpreted("step")


@pytest.mark.parametrize("pages", [1, 40, 1000])
def test_step(kind: str, pages: int) -> None:
    check_step(module(kind), "cpu", pages, 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [384, 1000])
def test_embed_rows(kind: str, dtype: torch.dtype, dim: int) -> None:
    skip_truncation(kind, dtype)
    check_embed_rows(module(kind), "cpu", dtype, dim)
