"""The one way in which a step becomes a CUDA graph; who captures what, and when to stop, is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_WARM_UP_RUNS = 2


def capture_graph(
    step: Callable[[], Tensor], pool: Any, stream: torch.cuda.Stream
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Warm ``step`` up and capture it on ``stream``, with memory from ``pool``: the graph, and what a replay writes.

    Other threads may use the device meanwhile (thread-local capture). Raises what the driver raises.
    """
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_RUNS):
            step()
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        output = step()
    return graph, output
