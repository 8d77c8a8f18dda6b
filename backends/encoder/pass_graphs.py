"""CUDA graphs of an encoder's passes: one for each shape that it computes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from backends.encoder.metrics import EncoderMetrics
from backends.graph_capture import capture_graph

log = logging.getLogger(__name__)

#: Static inputs of a pass on the device -> what it makes, without a look at the host.
Compute = Callable[[Tensor, Tensor], Tensor]


class PassGraphs:
    """Passes of two inputs, by a key that fixes all shapes; captured before serving and never in it.

    A failed capture or replay turns graphs off for good: counted, named in the log, and passes run eagerly, to the same
    bits. One thread captures and replays.
    """

    def __init__(self, device: torch.device, metrics: EncoderMetrics) -> None:
        self._device, self._metrics = device, metrics
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """Graphs that serve."""
        return len(self._graphs)

    def capture(
        self, compute: Compute, keys: Iterable[int], inputs: Callable[[int], tuple[Tensor, Tensor]], min_free: int
    ) -> None:
        """Capture ``compute`` for every key, in the order given (largest first shares the most memory).

        ``inputs``: of a key, on the device, which the graph keeps. A key has none where less than ``min_free`` bytes
        are left.
        """
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        try:
            for key in keys:
                free, _ = torch.cuda.mem_get_info(self._device)
                if free < min_free:
                    log.warning("%d bytes free, below %d: no encoder graph for %d", free, min_free, key)
                    continue
                first, second = inputs(key)
                graph, output = capture_graph(partial(compute, first, second), pool, stream)
                self._graphs[key] = (graph, first, second, output)
        except Exception as error:
            self._disable("capture", error)

    def replay(self, key: int, first: Tensor, second: Tensor) -> Tensor | None:
        """Run the pass of ``key`` on inputs from pinned memory; None where no graph fits.

        The next replay of any key may overwrite the result.
        """
        entry = self._graphs.get(key)
        if entry is None:
            return None
        graph, own_first, own_second, output = entry
        try:
            own_first.copy_(first, non_blocking=True)
            own_second.copy_(second, non_blocking=True)
            graph.replay()
        except Exception as error:
            self._disable("replay", error)
            return None
        self._metrics.graph_replays.inc()
        return output

    def _disable(self, what: str, error: Exception) -> None:
        log.error("CUDA graph %s failed, the encoder runs eagerly from now on: %s", what, error)
        self._metrics.graph_failures.inc()
        self._graphs.clear()
