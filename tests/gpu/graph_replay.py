"""What every chain of kernels must do in a CUDA graph: the same as eagerly, without a word to the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def check_graph(step: Callable[[], list[Tensor]], refill: Callable[[torch.Generator], None]) -> list[Tensor]:
    """Capture ``step``, then replay and repeat it over inputs that ``refill`` renews in place, drawn on the CPU.

    Returns the results of the last inputs.
    """
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        captured = step()
    eager: list[Tensor] = []
    for seed in range(5):
        refill(torch.Generator().manual_seed(seed))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            eager = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph.replay()
        torch.cuda.synchronize()
        for one, other in zip(captured, eager, strict=True):
            assert not one.isnan().any() and torch.equal(one, other)
    return eager
