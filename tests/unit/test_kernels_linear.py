"""Skinny products: torch and triton's interpreter against float64; no row depends on another."""

from __future__ import annotations

import pytest
import torch

from backends.kernels import linear
from tests.kernel_cases import interpreted
from tests.linear_cases import PLANS, SHAPES, LinearCase, check_combination, check_linear, check_rows, short

# Triton's interpreter multiplies the bits of bfloat16 as if they were numbers: left to tests/gpu.
DTYPES = [torch.float32, torch.float16]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def case(kind: str, dtype: torch.dtype, shape: tuple[int, int], plan: linear.Plan) -> LinearCase:
    return LinearCase(linear if kind == "torch" else interpreted("linear"), "cpu", dtype, shape, plan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=short)
def test_values(dtype: torch.dtype, shape: tuple[int, int], plan: linear.Plan) -> None:
    check_linear(case("triton", dtype, shape, plan), [17])


@pytest.mark.parametrize("plan", PLANS, ids=short)
def test_rows(plan: linear.Plan) -> None:
    check_rows(case("triton", torch.float32, SHAPES[0], plan), [5, 33])


def test_the_torch_version() -> None:
    for dtype in (*DTYPES, torch.bfloat16):
        check_linear(case("torch", dtype, SHAPES[0], PLANS[0]), [1, 64])
        check_rows(case("torch", dtype, SHAPES[0], PLANS[0]), [2, 16, 33])


@pytest.mark.parametrize("plan", [PLANS[1], PLANS[3]], ids=short)
def test_both_ways_to_add_parts(plan: linear.Plan) -> None:
    check_combination(case("triton", torch.float32, SHAPES[0], plan))


def test_every_sum_has_a_plan_and_a_workspace() -> None:
    for shape in [(1024, 2560), (2560, 9728), (19456, 2560), (16, 16), (176, 336), (151936, 2560)]:
        plan = linear.plan_for(*shape)
        assert 1 <= plan.split <= 16 and plan.tile == 16
        space = linear.linear_workspace([shape, (16, 16)], torch.device("cpu"), rows=8)
        assert space.partial.numel() >= plan.split * 8 * shape[0]
        assert space.counters.numel() * plan.block_n >= shape[0] and not space.counters.any()
    for shape, plan in linear.PLANS.items():
        assert plan.tile == 16, f"{shape}: the bits of a row would depend on how many rows there are"


X, W = torch.zeros(2, 32), torch.zeros(48, 32)
REFUSED = [
    (X[:, :16], W, {}, "do not fit"),
    (torch.zeros(2, 24), torch.zeros(48, 24), {}, "multiples of 16"),
    (torch.zeros(65, 32), W, {}, "65 rows"),
    (torch.zeros(0, 32), W, {}, "0 rows"),
    (X, W.half(), {}, "dtypes"),
    (X, torch.zeros(32, 48).T, {}, "contiguous"),
    (X, W, {"bias": torch.zeros(47)}, "bias"),
    (X, W, {"out": torch.zeros(2, 47)}, "out"),
    (X, W, {"activation": "relu"}, "activation 'relu'"),
]


@pytest.mark.parametrize(("x", "weight", "options", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_refused(x: torch.Tensor, weight: torch.Tensor, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear.skinny_linear(x, weight, **options)  # type: ignore[arg-type]
