"""Paged decode attention: the torch version, and the kernel in triton's interpreter, against float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from backends.kernels import attention, attention_workspace
from tests.kernel_cases import HEADS, AttentionCase, check_attention, check_attention_invariance, interpreted

LENGTHS = [1, 0, 17, 128, 129, 256]


@pytest.fixture(params=["torch", "triton"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    torch.set_num_threads(1)
    return attention if request.param == "torch" else interpreted("attention")


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("page", [16, 32, 64])
def test_attention_equals_float64(module: ModuleType, heads: tuple[int, int], page: int) -> None:
    dim = 64 if page == 32 else 128
    case = AttentionCase("cpu", torch.float32, heads, dim, page, LENGTHS, 256 // page + 1)
    check_attention(module, case)


# The interpreter of triton 3.6 multiplies bfloat16 as integers in tl.dot, so groups in bfloat16 are left to the GPU.
@pytest.mark.parametrize(("dtype", "heads"), [(torch.bfloat16, (3, 3)), (torch.float16, (8, 2))])
def test_half_precision(module: ModuleType, dtype: torch.dtype, heads: tuple[int, int]) -> None:
    check_attention(module, AttentionCase("cpu", dtype, heads, 64, 16, [40, 130, 0], 12))


@pytest.mark.parametrize("split_keys", [64, 256])
@pytest.mark.parametrize("fused", [True, False])
def test_every_cut(split_keys: int, fused: bool) -> None:
    case = AttentionCase("cpu", torch.float32, (6, 2), 64, 32, [700, 65, 3], 23)
    check_attention(interpreted("attention"), case, split_keys=split_keys, fused=fused)


def test_fused_and_separate_combination_give_the_same_bits() -> None:
    case = AttentionCase("cpu", torch.float32, (8, 2), 64, 16, [1500, 300, 128], 96)
    kernel = interpreted("attention")
    assert torch.equal(case.run(kernel, [0, 1, 2], fused=True), case.run(kernel, [0, 1, 2], fused=False))


@pytest.mark.parametrize("heads", [(6, 6), (8, 2)])
def test_a_row_does_not_know_its_neighbours(module: ModuleType, heads: tuple[int, int]) -> None:
    lengths = [(37 * i) % 300 for i in range(10)]
    case = AttentionCase("cpu", torch.float32, heads, 64, 16, lengths, 19)
    check_attention_invariance(module, case, [1, 9])


def test_misfits_are_refused() -> None:
    case = AttentionCase("cpu", torch.float32, (6, 4), 64, 16, [3], 1)
    with pytest.raises(ValueError, match="do not fit"):
        case.run(attention, [0])
    with pytest.raises(ValueError, match="power of two"):
        attention_workspace(1, 4, 64, 1, 16, torch.device("cpu"), split_keys=100)
