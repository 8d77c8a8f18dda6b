"""Paged prefill attention: the torch version, and the kernel in triton's interpreter, against float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from backends.kernels import prefill
from tests.kernel_cases import HEADS, interpreted
from tests.kernel_prefill_cases import PrefillCase, check_prefill, check_prefill_invariance

PIECES = [(0, 32), (0, 5), (0, 0), (96, 128), (32, 49), (64, 96)]


@pytest.fixture(params=["torch", "triton"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    torch.set_num_threads(1)
    return prefill if request.param == "torch" else interpreted("prefill")


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("page", [16, 32])
def test_it_equals_float64(module: ModuleType, heads: tuple[int, int], page: int) -> None:
    dim = 64 if page == 32 else 128
    check_prefill(module, PrefillCase("cpu", torch.float32, heads, dim, page, 32, PIECES))


def test_half_precision(module: ModuleType) -> None:
    check_prefill(module, PrefillCase("cpu", torch.float16, (8, 2), 64, 16, 32, PIECES))


@pytest.mark.parametrize("rows", [16, 48, 128])
def test_pieces_of_other_sizes(module: ModuleType, rows: int) -> None:
    pieces = [(0, rows), (rows, rows + 7), (3 * rows, 4 * rows)]
    check_prefill(module, PrefillCase("cpu", torch.float32, (4, 2), 64, 16, rows, pieces))


def test_a_row_knows_neither_its_neighbours_nor_the_end(module: ModuleType) -> None:
    check_prefill_invariance(module, PrefillCase("cpu", torch.float32, (6, 2), 64, 16, 32, PIECES))


def test_misfits_are_refused() -> None:
    case = PrefillCase("cpu", torch.float32, (6, 4), 64, 16, 16, [(0, 16)])
    with pytest.raises(ValueError, match="do not fit"):
        case.run(prefill, [0])
