"""Random products against float64, and rows alone against rows in company, for any implementation on any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.kernels.linear import LinearWorkspace, Plan
from tests.kernel_cases import close, poisoned_empty

# Both instructions; a sum in one part, in three, and three added by a second kernel; a depth for the wide case.
PLANS = [
    Plan(block_n=64, block_k=64, split=1),
    Plan(block_n=64, block_k=64, split=3),
    Plan(block_n=32, block_k=128, split=1, swap=False),
    Plan(block_n=16, block_k=64, split=3, swap=False, fused=False),
]
# N and K: multiples of 16, of nothing more, and fitting the blocks.
SHAPES = [(80, 272), (128, 384)]


def short(plan: Plan) -> str:
    return f"{plan.block_n}x{plan.block_k}/{plan.split}{'' if plan.swap else ' mma'}{'' if plan.fused else ' two'}"


class LinearCase:
    """A matrix, a bias and rows, all random; workspace and outputs full of NaN."""

    def __init__(self, module: ModuleType, device: str, dtype: torch.dtype, shape: tuple[int, int], plan: Plan) -> None:
        self.n, k = shape
        self.module, self.dtype, self.plan = module, dtype, plan
        random = torch.Generator().manual_seed(self.n + k + plan.split)

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=random).to(device, dtype)

        # Every second row of a larger tensor, so that nothing may assume that rows follow one another.
        self.x, self.weight, self.bias = draw(64, 2, k)[:, 0], draw(self.n, k), draw(self.n)
        partial = torch.full((plan.split * 64 * self.n,), float("nan"), device=device)
        self.space = LinearWorkspace(partial, torch.zeros(self.n // 16, dtype=torch.int32, device=device))

    def run(self, x: Tensor, bias: bool = False, activation: str | None = None) -> Tensor:
        with poisoned_empty():
            got: Tensor = self.module.skinny_linear(
                x, self.weight, self.bias if bias else None, activation, self.space, None, self.plan
            )
        assert not self.space.counters.any(), "counters must be zero between calls"
        return got

    def gated(self, x: Tensor) -> Tensor:
        with poisoned_empty():
            got: Tensor = self.module.gate_up_silu(x, self.weight, self.space, None, self.plan)
        return got


def check_linear(case: LinearCase, counts: list[int]) -> None:
    """Values of every epilogue, and an ``out`` of the caller."""
    exact = case.x.double() @ case.weight.double().T
    activations: dict[str | None, Callable[[Tensor], Tensor]] = {
        None: lambda t: t,
        "silu": F.silu,
        "gelu_new": lambda t: F.gelu(t, approximate="tanh"),
        "gelu": F.gelu,
    }
    for count in counts:
        for name, function in activations.items():
            want = function(exact[:count] + case.bias.double())
            close(case.run(case.x[:count], True, name), want, case.dtype, 2.0)
        close(case.run(case.x[:count]), exact[:count], case.dtype)
        gate, up = exact[:count].chunk(2, dim=1)
        close(case.gated(case.x[:count]), F.silu(gate) * up, case.dtype, 2.0)
    room = torch.full((3, case.n + 8), float("nan"), device=case.x.device, dtype=case.dtype)
    given = case.module.skinny_linear(case.x[:3], case.weight, None, None, case.space, room[:, : case.n], case.plan)
    assert given.data_ptr() == room.data_ptr() and torch.equal(given, case.run(case.x[:3]))
    assert room[:, case.n :].isnan().all(), "written past the end of a row"


def check_rows(case: LinearCase, counts: list[int]) -> None:
    """A row has the same bits in any number of rows, at any place, among neighbours of any value."""
    whole, gated = case.run(case.x, True, "silu"), case.gated(case.x)
    alone = [case.run(case.x[i : i + 1], True, "silu") for i in range(0, 64, 21)]
    assert torch.equal(torch.cat(alone), whole[::21])
    for count in counts:
        assert torch.equal(case.run(case.x[:count], True, "silu"), whole[:count]), f"{count} rows"
        assert torch.equal(case.gated(case.x[:count]), gated[:count]), f"{count} rows, gated"
        last = case.x[64 - count :].flip(0)
        assert torch.equal(case.run(last, True, "silu").flip(0), whole[64 - count :]), f"the last {count} rows"
    poisoned = case.x.clone()
    poisoned[1::2] = float("nan")
    assert torch.equal(case.run(poisoned, True, "silu")[::2], whole[::2]), "NaN reached a neighbour"


def check_combination(case: LinearCase) -> None:
    """The last program to arrive and a second kernel add the same, with a workspace and without."""
    other = replace(case.plan, fused=not case.plan.fused)
    for count in (1, 33):
        x = case.x[:count]
        got = case.run(x, True, "silu")
        for plan, space in ((other, case.space), (case.plan, None)):
            same = case.module.skinny_linear(x, case.weight, case.bias, "silu", space, None, plan)
            assert torch.equal(same, got)
