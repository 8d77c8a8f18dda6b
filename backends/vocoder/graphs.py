"""CUDA graphs of whole vocoder steps, codes to samples: one for each number of streams B and of frames T."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from backends.graph_capture import capture_graph
from backends.vocoder.metrics import VocoderMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """``max_frames``: the largest T captured. ``min_free_bytes``: no capture while less of the device is free."""

    max_frames: int = 25
    min_free_bytes: int = 2 << 30


class VocoderGraphs:
    """Captured before serving and never in it. T is exact, since padding would move the state of a stream.

    A graph reads its codes, slots and resets from one buffer of its own and everything else from the slots' state, all
    of which stays where it is. Whatever fails, capture or replay, turns graphs off for good: counted and named in the
    log.
    """

    def __init__(self, metrics: VocoderMetrics, device: torch.device) -> None:
        self._metrics, self._device = metrics, device
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """Graphs that serve."""
        return len(self._graphs)

    def capture(
        self,
        step: Callable[[Tensor, int], Tensor],
        packed: Callable[[int, int], Tensor],
        buckets: Sequence[int],
        options: GraphOptions,
    ) -> None:
        """Capture ``step(inputs, B) -> audio`` for every B of ``buckets`` and every T, largest first so that they share
        memory.

        ``packed(B, T)`` makes the inputs of a step that moves nobody's state, on the host. Stops, with what it has,
        where less than ``min_free_bytes`` would be left on the device.
        """
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        shapes = [(streams, frames) for streams in sorted(buckets) for frames in range(1, options.max_frames + 1)]
        try:
            for streams, frames in reversed(shapes):
                free, _ = torch.cuda.mem_get_info(self._device)
                if free < options.min_free_bytes:
                    log.warning(
                        "%d bytes free, below %d: %d of %d vocoder graphs captured",
                        free,
                        options.min_free_bytes,
                        len(self),
                        len(shapes),
                    )
                    break
                inputs = packed(streams, frames).to(self._device)
                graph, audio = capture_graph(partial(step, inputs, streams), pool, stream)
                self._graphs[streams, frames] = (graph, inputs, audio)
        except Exception as error:
            self.disable("capture", error)

    def __contains__(self, shape: tuple[int, int]) -> bool:
        """Whether a step of (B, T) can be replayed."""
        return shape in self._graphs

    def replay(self, inputs: Tensor, streams: int, frames: int) -> Tensor:
        """Run a captured step of ``inputs`` (on the host, pinned). Raises what the driver raises, now or at the copy
        back: :meth:`disable` then.

        The result is overwritten by the next replay of the same shape: copy it on the same stream.
        """
        graph, static, audio = self._graphs[streams, frames]
        static.copy_(inputs, non_blocking=True)
        graph.replay()
        return audio

    def disable(self, what: str, error: Exception) -> None:
        """No graph from now on."""
        log.error("CUDA graph %s failed, vocoder steps run eagerly from now on: %s", what, error)
        self._metrics.graph_failures.inc()
        self._graphs.clear()
