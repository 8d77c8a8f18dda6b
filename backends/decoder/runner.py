"""The runner: what one decode step and one piece of prefill do on the device, split into launch and resolve."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from backends.decoder.buckets import alike_in_any_place, decode_buckets
from backends.decoder.cross_cache import CrossCache
from backends.decoder.graphs import StepGraphs
from backends.decoder.kv_cache import PagedCache
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.prefill_pass import Piece, PrefillPass
from backends.decoder.request import DecodeRequest
from backends.decoder.sampler import Sampler
from backends.device import upload
from backends.kernels import SlotState, StepInput, begin_step, finish_step
from backends.models.protocol import Attention, DecoderModel, EncoderDecoderModel, audio_spec
from backends.rows import pack_row_keys, row_key

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Shapes of the runner."""

    slots: int
    positions: int
    pages: int
    page_rows: int
    prefill_rows: int
    prefill_pieces: int = 1
    deterministic: bool = True


@dataclass(slots=True)
class Flight:
    """A launched step that nobody has resolved yet: who took part, whose output counts, and where it arrives.

    ``requests`` is a copy: the batch may change before the step is resolved, and a request that ended meanwhile must be
    recognised by what it is, not by the slot that it had.
    """

    requests: list[DecodeRequest]
    keep: list[bool]
    output: Tensor  # int64 [bucket, codebooks + 3] on the host: codes, stop, the two residues of the next row's key
    event: torch.cuda.Event | None


@dataclass(frozen=True, slots=True)
class Frame:
    """What a step made for one request: ``codes`` int32 [codebooks], the row's key, whether it ended instead."""

    request: DecodeRequest
    codes: Tensor
    key: int
    ended: bool


def reads_together(model: DecoderModel) -> bool:
    """Whether prompts are read in passes: on a GPU, unless the model attends to an encoder's states beside them."""
    audio = audio_spec(model)
    return model.device.type == "cuda" and (audio is None or audio.cross is None)


class Runner:
    """Runs the model at fixed shapes: decode at the rows of a bucket, prefill at ``prefill_rows`` rows of one request.

    Which bucket a step takes depends on the load, so all buckets must give the same bits; see
    :mod:`backends.decoder.buckets`. All state that a step reads and writes lies on the device, by slot: its input row,
    its position, its step number. A step moves them on itself, so the next one can be launched before this one is
    resolved.
    """

    def __init__(self, model: DecoderModel, config: RunnerConfig) -> None:
        self.model, self.config = model, config
        device, spec, slots = model.device, model.rows, config.slots
        self.cache = PagedCache(model.kv, config.pages, config.page_rows, slots, config.positions, device)
        audio = audio_spec(model)
        self._cross: CrossCache | None = None
        if audio is not None and audio.cross is not None:
            self._cross = CrossCache(audio.cross, slots, device, paged=device.type != "cpu")
        self.buckets = decode_buckets(model, slots, config.deterministic)
        self._pass = self._make_pass() if reads_together(model) else None
        self.sampler = Sampler(slots + 1, spec.width, max(spec.codebook_size, 2), device)
        rows = torch.full((slots + 1, spec.width), spec.pad_code, dtype=torch.int64, device=device)
        rows[:, 0] = 0
        zeros = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self._state = SlotState(rows, zeros, zeros.clone())
        width = spec.codebooks + 3
        self._buffers = [torch.zeros(self.buckets[-1], width, dtype=torch.int64) for _ in range(2)]
        if device.type == "cuda":
            self._buffers = [buffer.pin_memory() for buffer in self._buffers]
        self._turn = 0
        self._graphs: StepGraphs | None = None

    def _make_pass(self) -> PrefillPass:
        pieces, rows = self.config.prefill_pieces, self.config.prefill_rows
        if pieces > 1 and self.config.deterministic and not alike_in_any_place(self.model, pieces * rows, rows):
            log.warning(
                "products of %d rows differ by place on this machine: prompts are read by %d", pieces * rows, rows
            )
            pieces = 1
        return PrefillPass(self.model, self.cache, pieces, rows)

    @property
    def pass_pieces(self) -> int:
        """Pieces of prompts that are read together, by :meth:`read`; 0: one by one, by :meth:`prefill`."""
        return self._pass.pieces if self._pass is not None else 0

    @property
    def prefill_graph(self) -> bool:
        """Whether prompts are read by a CUDA graph."""
        return self._pass is not None and self._pass.graph

    def next_pieces(self, request: DecodeRequest, room: int) -> list[Piece]:
        """Up to ``room`` pieces that a request's prompt still needs, in order."""
        size, limit = self.config.prefill_rows, request.prefill_rows
        first = request.stored // size * size
        starts = range(first, limit, size)[:room] if request.stored < limit else ()
        return [Piece(request, start, min(start + size, limit)) for start in starts]

    def read(self, pieces: Sequence[Piece]) -> int:
        """Read up to ``pass_pieces`` pieces in one pass; returns how many rows were read."""
        assert self._pass is not None
        self._pass.read(pieces)
        done = 0
        for piece in pieces:
            done += piece.end - piece.request.stored
            piece.request.stored = piece.end
        return done

    def prefill(self, request: DecodeRequest) -> int:
        """Read the next piece of a prompt; returns how many rows were read.

        Pieces are aligned to ``prefill_rows``, whatever the hit: the piece that holds the end of the hit is computed
        whole and its first rows are not stored, so that a hit computes exactly what a miss does.
        """
        size, page_rows = self.config.prefill_rows, self.config.page_rows
        start = request.stored // size * size
        end = min(start + size, request.prefill_rows)
        piece = torch.zeros(size, self.model.rows.width, dtype=torch.int64)
        piece[:, 1:] = self.model.rows.pad_code
        piece[: end - start] = request.rows[start:end]
        scratch = self.cache.scratch_page * page_rows
        lines = [
            request.pages[p // page_rows] * page_rows + p % page_rows if request.hit <= p < end else scratch
            for p in range(start, start + size)
        ]
        device = self.model.device
        attend = self.cache.prefill(request.pages, start, upload(torch.tensor(lines), self.model.device))
        positions = torch.arange(start, start + size, device=device)
        x = self.model.embed(upload(piece, self.model.device))
        if self._cross is not None:
            attend = self._cross.prefill(attend, request.slot)
        elif request.audio is not None:
            at, states = request.audio.piece(start, end)
            x = x.index_copy(0, upload(at, self.model.device), upload(states.to(x.dtype), self.model.device))
        self.model.backbone(x, positions, attend)
        done = end - request.stored
        request.stored = end
        return done

    def read_audio(self, request: DecodeRequest) -> bool:
        """Compute what layers attend to of a request's audio; False where nothing is left to compute.

        On a CPU a layer at a time, so that running streams wait no longer for this than for a piece of a prompt.
        """
        if self._audio_is_read(request):
            return False
        assert self._cross is not None and request.audio is not None
        model = cast(EncoderDecoderModel, self.model)
        states = upload(request.audio.states.to(self._cross.spec.dtype), self.model.device)
        for _ in range(1 if self.model.device.type == "cpu" else self._cross.spec.layers):
            layer = request.cross_layers
            self._cross.store(layer, request.slot, *model.cross_kv(layer, states))
            request.cross_layers += 1
        return True

    def is_read(self, request: DecodeRequest) -> bool:
        """Whether a request's prompt and audio are read, so that it may decode."""
        return request.stored >= request.prefill_rows and self._audio_is_read(request)

    def _audio_is_read(self, request: DecodeRequest) -> bool:
        return self._cross is None or request.cross_layers == self._cross.spec.layers

    def join(self, request: DecodeRequest) -> None:
        """Let a request decode from now on."""
        self.cache.set_table(request.slot, request.pages)
        self.sampler.set_slot(request.slot, request.sampling)
        request.on_device = False

    def leave(self, slot: int) -> None:
        """Take a slot out of the batch; its table falls back to the scratch page."""
        self.cache.tables[slot].fill_(self.cache.scratch_page)

    @property
    def graphs(self) -> int:
        """CUDA graphs of decode steps that serve."""
        return len(self._graphs) if self._graphs else 0

    def warm_up(self) -> None:
        """Run every decode step once on the scratch slot: kernels compile, tables are made, libraries wake up."""
        for bucket in self.buckets:
            slot_ids = torch.full((bucket,), self.cache.scratch_slot, dtype=torch.int64, device=self.model.device)
            for sampled in (False, True):
                self._step(slot_ids, sampled)
        if self._pass is not None:
            self._pass.run()
        torch.cuda.synchronize(self.model.device)

    def capture(self, metrics: DecoderMetrics, min_free_bytes: int) -> None:
        """Capture decode steps and passes over prompts as CUDA graphs. Once, before any request, in this thread."""
        self._graphs = StepGraphs(metrics, self.model.device)
        self._graphs.capture(self._step, self.buckets, self.cache.scratch_slot, min_free_bytes)
        if self._pass is not None:
            self._pass.capture(metrics, min_free_bytes)

    def launch(self, requests: Sequence[DecodeRequest]) -> Flight:
        """Start one decode step of ``requests`` (each holds pages for its next position). Does not wait for it."""
        keep = [request.stored == request.total - 1 for request in requests]
        for request, kept in zip(requests, keep, strict=True):
            if not request.on_device:
                self._feed(request)
            request.stored += 1
            request.total += kept
            request.on_device = kept
        bucket = next(bucket for bucket in self.buckets if bucket >= len(requests))
        slots = [request.slot for request in requests] + [self.cache.scratch_slot] * (bucket - len(requests))
        sampled = [row for row, request in enumerate(requests) if request.sampling.temperature > 0]
        if self.model.device.type == "cpu":
            slot_ids = torch.tensor(slots)
            pages, lengths = [request.pages for request in requests], [request.stored for request in requests]
            step = begin_step(slot_ids, self._state, self.cache.tables, self.config.page_rows)
            attend = self.cache.decode_rows(pages, lengths, step.lines)
            if self._cross is not None:
                attend = self._cross.decode_rows(attend, slots[: len(requests)])
            output = self._run(slot_ids, step, torch.tensor(sampled) if sampled else False, attend)
            return Flight(list(requests), keep, output, None)
        host_ids = torch.tensor(slots).pin_memory()
        result = self._graphs.replay(host_ids, bool(sampled)) if self._graphs else None
        if result is None:
            result = self._step(host_ids.to(self.model.device, non_blocking=True), bool(sampled))
        return Flight(list(requests), keep, *self._to_host(result))

    def resolve(self, flight: Flight) -> list[Frame]:
        """Wait for a launched step and read what it made. Rows whose output does not count are left out."""
        if flight.event is not None:
            flight.event.synchronize()
        codebooks = self.model.rows.codebooks
        # A copy: the buffer belongs to a later step soon, and the codes go on to the sink.
        codes = flight.output[:, :codebooks].to(torch.int32)
        ended, keys = flight.output[:, codebooks].tolist(), pack_row_keys(flight.output[:, codebooks + 1 :])
        return [
            Frame(request, codes[row], keys[row], bool(ended[row]))
            for row, (request, kept) in enumerate(zip(flight.requests, flight.keep, strict=True))
            if kept
        ]

    def _to_host(self, result: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """Start the copy into one of two pinned buffers. Two are enough: a step is resolved before the next but one."""
        self._turn = 1 - self._turn
        buffer = self._buffers[self._turn][: len(result)]
        buffer.copy_(result, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return buffer, event

    def _feed(self, request: DecodeRequest) -> None:
        """Put a known row onto the device: the first of a request, and every row that is replayed."""
        row = request.row(request.stored)
        self._state.rows[request.slot] = upload(row, self.model.device)
        # fill_, because `tensor[i] = number` waits for the device (torch 2.11).
        self._state.positions[request.slot].fill_(request.stored)
        self._state.steps[request.slot].fill_(request.launched_frames)

    def _step(self, slot_ids: Tensor, sampled: bool) -> Tensor:
        """One step of a GPU: everything it needs is found through ``slot_ids``, so a graph can be made of it."""
        step = begin_step(slot_ids, self._state, self.cache.tables, self.config.page_rows)
        attend = self.cache.decode(step.tables, step.lengths, step.lines)
        if self._cross is not None:
            attend = self._cross.decode(attend, slot_ids)
        return self._run(slot_ids, step, sampled, attend)

    def _run(self, slot_ids: Tensor, step: StepInput, sampled: Tensor | bool, attend: Attention) -> Tensor:
        """The whole step on the device: embed, backbone, frame, sample, next row, its key. Int64 [B, codebooks + 3]."""
        self.sampler.begin(slot_ids, step.steps, sampled)
        hidden = self.model.backbone(self.model.embed(step.rows), step.positions, attend)
        codes, stop = self.model.frame(hidden, self.sampler)
        rows = finish_step(slot_ids, step, codes, self.model.rows.assistant_slot_id, self._state)
        return torch.cat([codes, stop.unsqueeze(1), row_key(rows)], dim=1)
