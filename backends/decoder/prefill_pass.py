"""Prompts on a GPU: pieces of several requests in one pass of one shape, and that pass as a CUDA graph.

A piece by itself has too few rows for the device and more launches than the host can make in the time: 36 layers of 32
rows cost what 36 layers of 256 do. So all pieces that are read between two decode steps go together, consecutive ones
of a prompt or those of strangers, and free places stay idle. One shape means that nobody's bits know who shared a pass.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.decoder.kv_cache import PagedCache
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.request import DecodeRequest
from backends.device import upload
from backends.graph_capture import capture_graph
from backends.models.protocol import DecoderModel, audio_spec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``start`` ... ``end`` - 1 of a prompt; ``start`` is a multiple of the rows of a piece."""

    request: DecodeRequest
    start: int
    end: int


class PrefillPass:
    """Embed, layers and the keys and values they store, for ``pieces`` x ``rows`` prompt rows.

    What a pass reads lies in one buffer on the device that never moves, so one upload feeds it. A failed capture or
    replay turns the graph off for good: counted, named in the log, and passes run eagerly, to the same bits.
    """

    def __init__(self, model: DecoderModel, cache: PagedCache, pieces: int, rows: int) -> None:
        self.model, self.cache, self.pieces, self.rows = model, cache, pieces, rows
        count = pieces * rows
        #: Parts of the buffer, all int64: prompt rows, positions, lines of the cache that are written, which rows have
        #: a state of the audio; and by piece: first position, end of what is real, page table.
        self._shapes = (
            (count, model.rows.width), (count,), (count,), (count,), (pieces,), (pieces,), (pieces, cache.table_pages),
        )  # fmt: skip
        self._idle = torch.zeros(sum(map(prod, self._shapes)), dtype=torch.int64)
        prompt, _, lines, _, _, _, tables = self._parts(self._idle)
        prompt[:, 1:], lines[:], tables[:] = (
            model.rows.pad_code,
            cache.scratch_page * cache.page_rows,
            cache.scratch_page,
        )
        self._input = self._idle.to(model.device, copy=True)
        audio = audio_spec(model)
        self._states: Tensor | None = None
        if audio is not None:
            self._states = torch.zeros(count, audio.width, dtype=model.kv.dtype, device=model.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._metrics: DecoderMetrics | None = None

    @property
    def graph(self) -> bool:
        """Whether passes run as a CUDA graph."""
        return self._graph is not None

    def read(self, pieces: Sequence[Piece]) -> None:
        """Store keys and values of up to ``self.pieces`` pieces, whose requests hold the pages. Does not wait.

        Of one request they ascend. Rows of a piece before its request's ``hit`` are stored already and not written
        again: a hit computes exactly what a miss does.
        """
        # A copy in pinned memory: from pageable memory the upload would wait for the device.
        host = self._idle.pin_memory() if self.model.device.type == "cuda" else self._idle.clone()
        parts = [part.numpy() for part in self._parts(host)]
        heard = [self._put(parts, place, piece) for place, piece in enumerate(pieces)]
        self._input.copy_(host, non_blocking=True)
        self._hear(parts[3], [states for states in heard if states is not None])
        if self._graph is not None:
            try:
                self._graph.replay()
            except Exception as error:
                self._disable("replay", error)
            else:
                if self._metrics is not None:
                    self._metrics.prefill_graph_replays.inc()
                return
        self.run()

    def run(self) -> Tensor:
        """The pass itself, on what the buffer holds. Hidden states [pieces x rows, hidden], which nobody needs."""
        prompt, positions, lines, heard, starts, ends, tables = self._parts(self._input)
        x = self.model.embed(prompt)
        if self._states is not None:
            x = torch.where((heard != 0).unsqueeze(1), self._states, x)
        return self.model.backbone(x, positions, self.cache.prefill_pieces(tables, starts, ends, lines))

    def capture(self, metrics: DecoderMetrics, min_free_bytes: int) -> None:
        """Make a CUDA graph of the idle pass. Call once, in the thread that reads, before any request."""
        self._metrics = metrics
        free, _ = torch.cuda.mem_get_info(self.model.device)
        if free < min_free_bytes:
            log.warning("%d bytes free, below %d: no graph for prompts", free, min_free_bytes)
            return
        try:
            pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.model.device)
            self._graph, _ = capture_graph(self.run, pool, stream)
        except Exception as error:
            self._disable("capture", error)

    def _disable(self, what: str, error: Exception) -> None:
        log.error("CUDA graph %s failed, prompts are read eagerly from now on: %s", what, error)
        self._graph = None
        if self._metrics is not None:
            self._metrics.graph_failures.inc()

    def _put(self, parts: Sequence[NDArray[np.int64]], place: int, piece: Piece) -> Tensor | None:
        """Write one piece into its place of the parts of the buffer; the states of its audio, if it has any."""
        prompt, positions, lines, heard, starts, ends, tables = parts
        request, size = piece.request, self.cache.page_rows
        first, count = place * self.rows, piece.end - piece.start
        pages = np.array(request.pages, dtype=np.int64)
        at = np.arange(piece.start, piece.start + self.rows)
        own = at[max(0, min(request.hit - piece.start, count)) : count]
        prompt[first : first + count] = request.rows.numpy()[piece.start : piece.end]
        positions[first : first + self.rows] = at
        lines[first + count - len(own) : first + count] = pages[own // size] * size + own % size
        starts[place], ends[place] = piece.start, piece.end
        known = min(len(pages), tables.shape[1])
        tables[place, :known] = pages[:known]
        if self._states is None or request.audio is None:
            return None
        rows, states = request.audio.piece(piece.start, piece.end)
        heard[first + rows.numpy()] = 1
        return states

    def _hear(self, heard: NDArray[np.int64], states: Sequence[Tensor]) -> None:
        """Bring the audio of all pieces to the device in one upload; ``heard`` marks its rows."""
        if self._states is not None and states:
            device, numbers = self.model.device, torch.cat(list(states)).to(self._states.dtype)
            self._states.index_copy_(0, upload(torch.from_numpy(heard.nonzero()[0]), device), upload(numbers, device))

    def _parts(self, buffer: Tensor) -> tuple[Tensor, ...]:
        """Views of the parts of ``buffer``, in the order of ``_shapes``."""
        sizes = [prod(shape) for shape in self._shapes]
        return tuple(part.view(shape) for part, shape in zip(buffer.split(sizes), self._shapes, strict=True))
