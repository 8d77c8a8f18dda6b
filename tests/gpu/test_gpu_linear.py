"""Skinny products on a GPU: against float64, every number of rows, in a graph, TMA."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from backends.kernels import add_rms_norm, linear
from tests.gpu.graph_replay import check_graph
from tests.kernel_cases import close
from tests.linear_cases import PLANS, SHAPES, LinearCase, check_combination, check_linear, check_rows, short

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.gpu

ALL = [*PLANS, replace(PLANS[1], tma=True), replace(PLANS[2], tma=True)]
EARLIER: dict[str, list[torch.Tensor]] = {}  # the same with the other setting
NAMES = [short(plan) + " tma" * plan.tma for plan in ALL]
MATRICES = [(19456, 2560), (2560, 9728), (6144, 2560), (2560, 4096), (10240, 2560), (2560, 10240), (7680, 2560)]
MATRICES += [(2560, 2560), (1024, 2560)]


def case(dtype: torch.dtype, shape: tuple[int, int], plan: linear.Plan) -> LinearCase:
    torch.backends.cuda.matmul.allow_tf32 = False
    return LinearCase(linear, "cuda", dtype, shape, plan)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("plan", ALL, ids=NAMES)
def test_values(dtype: torch.dtype, shape: tuple[int, int], plan: linear.Plan) -> None:
    check_linear(case(dtype, shape, plan), [1, 16, 17, 33, 64])


@pytest.mark.parametrize("plan", ALL, ids=NAMES)
def test_rows(plan: linear.Plan) -> None:
    check_rows(case(torch.bfloat16, SHAPES[0], plan), list(range(1, 65)))


@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_the_matrices_of_the_voice_under_their_plans(shape: tuple[int, int]) -> None:
    work = case(torch.bfloat16, shape, linear.plan_for(*shape))
    close(work.run(work.x), work.x.double() @ work.weight.double().T, torch.bfloat16)
    check_rows(work, list(range(1, 65)))
    gate_up = work.run(work.x)
    gate, up = gate_up.float().chunk(2, dim=1)
    close(work.gated(work.x), F.silu(gate) * up, torch.bfloat16)


@pytest.mark.parametrize("plan", [PLANS[1], PLANS[3]], ids=short)
def test_both_ways_to_add_parts(plan: linear.Plan) -> None:
    check_combination(case(torch.bfloat16, SHAPES[0], plan))


def test_parts_arrive_in_any_order() -> None:
    work = case(torch.bfloat16, (2560, 9728), linear.Plan(split=8))
    first = work.run(work.x[:16], True, "silu")
    for _ in range(50):
        assert torch.equal(work.run(work.x[:16], True, "silu"), first)


@pytest.mark.parametrize("early", [False, True])
def test_a_chain_in_a_graph_equals_eager(early: bool) -> None:
    """Each product reads what the kernel before wrote, which an early launch must wait for."""
    from backends.kernels.gpu.early import allow_early_launch

    device, bf16 = torch.device("cuda"), torch.bfloat16
    random = torch.Generator(device).manual_seed(0)
    up, down, x = (
        torch.randn(*shape, generator=random, device=device).to(bf16)
        for shape in ((4096, 1024), (1024, 2048), (16, 1024))
    )
    norm = torch.ones(1024, device=device, dtype=bf16)
    partial = torch.empty(3 * 16 * 4096, device=device)
    space = linear.LinearWorkspace(partial, torch.zeros(256, dtype=torch.int32, device=device))

    def chain() -> list[torch.Tensor]:
        hidden, residual = add_rms_norm(x, None, norm, 1e-6)
        for _ in range(20):
            hidden = linear.gate_up_silu(hidden, up, space, plan=PLANS[1])
            hidden = linear.skinny_linear(hidden, down, None, None, space, plan=PLANS[3])
            hidden, residual = add_rms_norm(hidden, residual, norm, 1e-6)
        return [hidden]

    def refill(random: torch.Generator) -> None:
        x.copy_(torch.randn(16, 1024, generator=random))

    allow_early_launch(early)
    try:
        results = check_graph(chain, refill)
    finally:
        allow_early_launch(True)
    assert all(torch.equal(a, b) for a, b in zip(results, EARLIER.setdefault("chain", results), strict=True))
