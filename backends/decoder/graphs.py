"""CUDA graphs of whole decode steps: embed to row key, sampling included."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from backends.decoder.metrics import DecoderMetrics
from backends.graph_capture import capture_graph

log = logging.getLogger(__name__)


class StepGraphs:
    """One graph for each bucket, with and without sampling, captured before serving and never in it.

    A graph reads its slot ids from a buffer of its own and everything else from the runner's state, all of which stays
    where it is. Whatever fails, capture or replay, turns graphs off for good: counted, named in the log, and the step
    runs eagerly.
    """

    def __init__(self, metrics: DecoderMetrics, device: torch.device) -> None:
        self._metrics, self._device = metrics, device
        self._graphs: dict[tuple[int, bool], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """Graphs that serve."""
        return len(self._graphs)

    def capture(
        self, step: Callable[[Tensor, bool], Tensor], buckets: Sequence[int], idle_slot: int, min_free_bytes: int
    ) -> None:
        """Capture ``step(slot_ids [bucket], sampled) -> output`` for every bucket, largest first so that they share
        memory.

        Runs on ``idle_slot`` only, so no request's state moves. Stops, with what it has, where less than
        ``min_free_bytes`` would be left on the device.
        """
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        try:
            for bucket in sorted(buckets, reverse=True):
                for sampled in (False, True):
                    free, _ = torch.cuda.mem_get_info(self._device)
                    if free < min_free_bytes:
                        log.warning("%d bytes free, below %d: no graph for %d rows", free, min_free_bytes, bucket)
                        continue
                    slot_ids = torch.full((bucket,), idle_slot, dtype=torch.int64, device=self._device)
                    graph, output = capture_graph(partial(step, slot_ids, sampled), pool, stream)
                    self._graphs[bucket, sampled] = (graph, slot_ids, output)
        except Exception as error:
            self.disable("capture", error)

    def replay(self, slot_ids: Tensor, sampled: bool) -> Tensor | None:
        """Run the step of ``slot_ids`` (int64 [bucket], pinned, on the host); None where no graph fits.

        The result is overwritten by the next replay: copy it on the same stream.
        """
        entry = self._graphs.get((len(slot_ids), sampled))
        if entry is None:
            return None
        graph, static_ids, output = entry
        try:
            static_ids.copy_(slot_ids, non_blocking=True)
            graph.replay()
        except Exception as error:
            self.disable("replay", error)
            return None
        self._metrics.graph_replays.inc()
        return output

    def disable(self, what: str, error: Exception) -> None:
        """No graph from now on."""
        log.error("CUDA graph %s failed, decode steps run eagerly from now on: %s", what, error)
        self._metrics.graph_failures.inc()
        self._graphs.clear()
