"""The decoder engine: one thread that owns the model and gives every request its turn."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

import torch

from backends.decoder.config import EngineConfig
from backends.decoder.loop import DecodeLoop
from backends.decoder.memory import PageMemory
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.prompt_audio import check_audio
from backends.decoder.prompt_reader import PromptReader
from backends.decoder.request import DecodeRequest, FinishReason, Phase, rows_to_prefill
from backends.decoder.runner import Flight, Runner, RunnerConfig, reads_together
from backends.decoder.scheduler import Scheduler
from backends.device import give_way, use_threads
from backends.errors import Internal, Unavailable, VoxstageError
from backends.models.protocol import DecoderModel, audio_spec

log = logging.getLogger(__name__)


class DecoderEngine:
    """Continuous batching: requests join and leave between steps.

    One iteration: take what came in, admit, read at most ``prefill_pieces`` pieces of prompts (so that running streams
    never wait for more than those), then one decode step. ``submit`` and ``cancel`` may be called from any thread; the
    sinks are called from the engine's.
    """

    def __init__(self, model: DecoderModel, config: EngineConfig, metrics: DecoderMetrics | None = None) -> None:
        self.model, self.config, self.metrics = model, config, metrics or DecoderMetrics()
        pages = config.pages()
        shapes = RunnerConfig(
            config.max_running, config.max_positions, pages, config.page_rows, config.prefill_rows,
            config.pieces(reads_together(model)), config.deterministic,
        )  # fmt: skip
        self._runner = Runner(model, shapes)
        self._memory = PageMemory(pages, config.page_rows, config.prefix_cache, self.metrics)
        self._scheduler = Scheduler(config.max_running, config.max_waiting)
        self._reader = PromptReader(
            self._runner, self._memory, self._scheduler, self.metrics, shapes.prefill_pieces, self._start, self._fail
        )
        min_batch = config.lookahead_min_batch or (1 if model.device.type == "cuda" else config.max_running + 1)
        self._loop = DecodeLoop(self._launch, self._resolve, config.lookahead, min_batch)
        self._condition = threading.Condition()
        self._cancels: deque[int] = deque()
        self._closing = False
        self._fault: Exception | None = None  # what ended the thread, where it was not close()
        self._last_step = 0.0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._fault is not None:
            raise Internal(f"the decoder could not start: {self._fault}") from self._fault

    @property
    def graphs(self) -> int:
        """CUDA graphs that serve; 0 where steps run eagerly."""
        return self._runner.graphs

    @property
    def prefill_graph(self) -> bool:
        """Whether prompts are read by a CUDA graph."""
        return self._runner.prefill_graph

    @property
    def buckets(self) -> tuple[int, ...]:
        """Row counts of a decode step, ascending."""
        return self._runner.buckets

    def check_room(self) -> None:
        """Raise Unavailable when the engine is full. Without the lock, so it may be a step late: ``submit`` decides."""
        try:
            self._scheduler.check_room()
        except Unavailable:
            self.metrics.shed.inc()
            raise

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request. Raises Unavailable when the engine is full, Internal when it is closing or broken, and
        InvalidArgument for audio that the model does not read as it is given.
        """
        request.slot_token = self.model.rows.assistant_slot_id
        request.prefill_rows = rows_to_prefill(request.rows, request.slot_token)
        check_audio(request.audio, audio_spec(self.model), request.prefill_rows)
        if request.audio is not None:
            self._memory.name(request)  # here, not between two steps: such prompts are long
        if self.config.force_frames:
            request.max_frames = min(self.config.force_frames, self.config.max_positions - len(request.rows))
        request.timeline.stamp("queued")
        with self._condition:
            if self._fault is not None:
                raise Internal(f"the decoder has broken down: {self._fault}")
            if self._closing:
                raise Internal("the decoder is shutting down")
            try:
                self._scheduler.add(request)
            except VoxstageError:
                self.metrics.shed.inc()
                raise
            self.metrics.requests.inc()
            self._condition.notify()

    def cancel(self, stream_id: int) -> None:
        """End a stream before its next step, without another chunk: whoever cancels does not listen any more.

        An unknown id means that the stream has ended by itself: nothing happens.
        """
        with self._condition:
            self._cancels.append(stream_id)
            self._condition.notify()

    def close(self) -> None:
        """Stop the thread; streams that still run end as cancelled."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def check_idle(self) -> None:
        """Raise RuntimeError unless every request is gone, every slot and page is back, and no page has two owners."""
        with self._condition:
            self._scheduler.check_idle()
            self._memory.check([])

    def _run(self) -> None:
        """The thread. Whatever ends it, no stream is left to wait for ever and no request is taken afterwards."""
        use_threads(self.config.num_threads, self.model.device)
        if self.model.device.type == "cpu":
            give_way(self.config.nice)
        try:
            with torch.inference_mode():
                self._capture()
                self._ready.set()
                self._serve()
        except Exception as error:  # the bookkeeping itself is broken: nothing can be trusted any more
            log.exception("the decoder has broken down; every request fails from now on")
            with self._condition:
                self._fault = error
        finally:
            self._ready.set()
            self._end_all()

    def _serve(self) -> None:
        while self._take():
            try:
                self._reader.read()
                if self._scheduler.running:
                    self._step()
            except Exception as error:  # a fault of the model or the device: its streams end, the engine goes on
                log.exception("a decode iteration failed")
                self._loop.drop()
                self._fail(list(self._scheduler.running.values()), error)

    def _end_all(self) -> None:
        """End what is inside: as cancelled when the engine was closed, as failed when it broke down."""
        for request in self._scheduler.all():
            if self._fault is None:
                self._leave(request)
                request.finish(FinishReason.CANCELLED)
            else:  # its slot and pages are past saving
                self.metrics.failed.inc()
                self._tell(request, Internal(f"the decoder has broken down: {self._fault}"))

    def _capture(self) -> None:
        """Warm up, and capture CUDA graphs of every decode step, in this thread and before the first request."""
        if self.model.device.type == "cuda":
            torch.cuda.set_device(self.model.device)
            self._runner.warm_up()
            if self.config.cuda_graph:
                self._runner.capture(self.metrics, int(self.config.cuda_graph_min_free_gib * 2**30))

    def _take(self) -> bool:
        """Wait for work, apply cancels, admit. False when the engine closes."""
        with self._condition:
            if not len(self._scheduler):
                self._loop.drop()
                if self.config.check_integrity:
                    self._check_integrity()
                self._last_step = 0.0
            self._report()
            while not (self._closing or self._cancels or len(self._scheduler)):
                self._condition.wait()
            cancelled = [self._scheduler.find(self._cancels.popleft()) for _ in range(len(self._cancels))]
        for request in cancelled:
            if request is not None and request.phase is not Phase.DONE:
                self._leave(request)
                self.metrics.cancelled.inc()
                request.sink.end()
        with self._condition:
            self._scheduler.admit()
            self._report()
            return not self._closing

    def _check_integrity(self) -> None:
        """The debug switch: what is wrong is counted and named in the log, and the engine goes on."""
        try:
            self._scheduler.check_idle()
            self._memory.check([])
        except RuntimeError as error:
            self.metrics.integrity_failures.inc()
            log.error("the decoder is idle and its bookkeeping is wrong: %s", error)

    def _start(self, request: DecodeRequest) -> bool:
        """Look the prompt up in the prefix cache and get pages for the rest of it. False when there are none."""
        request.timeline.stamp("scheduled")
        self._memory.match(request)
        if not self._make_room(request, request.prefill_rows + 1):
            self._memory.release(request)
            request.stored = request.hit = 0
            return False
        return True

    def _make_room(self, request: DecodeRequest, rows: int) -> bool:
        """Let ``request`` hold pages for its first ``rows`` rows: free ones, idle cached ones, a younger one's."""
        while not self._memory.reserve(request, rows):
            victims = [other for other in self._scheduler.holding_pages() if other is not request]
            if not victims or victims[-1].order < request.order:
                return False
            self._loop.drain()  # a request in flight cannot lose its pages
            if victims[-1].phase is not Phase.DONE:
                self._retract(victims[-1])
        return True

    def _retract(self, request: DecodeRequest) -> None:
        """Take everything from a request but what it has said; it starts over and goes on where it was."""
        self.metrics.retracted.inc()
        request.retractions += 1
        self._runner.leave(request.slot)
        self._memory.release(request)
        request.stored = request.hit = request.cross_layers = 0
        request.on_device = False
        with self._condition:
            self._scheduler.retract(request)

    def _step(self) -> None:
        started = time.perf_counter()
        if self._last_step:
            self.metrics.saw_gap(started - self._last_step, started)
        self._loop.turn(len(self._scheduler.running))
        self._last_step = time.perf_counter()
        self.metrics.steps.inc()
        self.metrics.step_seconds.inc(self._last_step - started)

    def _launch(self) -> Flight | None:
        """Start a step of every running request that has frames left to make."""
        for request in sorted(self._scheduler.running.values(), key=lambda each: each.order):
            if request.phase is not Phase.RUNNING or self._is_done(request):
                continue
            pages = len(request.pages)
            if not self._make_room(request, request.stored + 1):
                self._loop.drain()
                if request.phase is Phase.RUNNING:
                    self._retract(request)
            elif len(request.pages) > pages:
                self._runner.cache.set_table(request.slot, request.pages[pages:], pages)
        batch = [request for request in self._scheduler.running.values() if not self._is_done(request)]
        if not batch:
            return None
        for request in batch:
            request.timeline.stamp("first_step")
        return self._runner.launch(batch)

    def _is_done(self, request: DecodeRequest) -> bool:
        """Whether all its frames are made or on their way."""
        return request.launched_frames >= request.max_frames

    def _resolve(self, flight: Flight) -> None:
        """Read a step and hand out what it made. Requests that ended after its launch are overruns, and dropped."""
        gone = {id(request) for request in flight.requests if request.phase is not Phase.RUNNING}
        self.metrics.overruns.inc(len(gone))
        for frame in self._runner.resolve(flight):
            request = frame.request
            if id(request) in gone:
                continue
            if frame.ended and not self.config.force_frames:
                self._finish(request, FinishReason.STOP)
                continue
            self.metrics.frames.inc()
            request.keys.append(frame.key)
            request.add_frame(frame.codes)
            if request.frames == request.max_frames:
                self._finish(request, FinishReason.LENGTH)

    def _finish(self, request: DecodeRequest, reason: FinishReason) -> None:
        self._memory.remember(request, len(request.rows) + request.frames)
        self._leave(request)
        self.metrics.finished.inc()
        request.finish(reason)

    def _fail(self, requests: list[DecodeRequest], error: Exception) -> None:
        """End ``requests`` with ``error``: as an error before the first chunk, in-band after it."""
        typed = error if isinstance(error, VoxstageError) else Internal(f"the decoder failed: {error}")
        for request in requests:
            self._leave(request)
            self.metrics.failed.inc()
            self._tell(request, typed)

    def _tell(self, request: DecodeRequest, error: VoxstageError) -> None:
        if request.chunks == 0:
            request.sink.fail(error)
        else:
            request.finish(FinishReason.ERROR, str(error))

    def _leave(self, request: DecodeRequest) -> None:
        """The single exit: out of the scheduler, slot and pages back."""
        if request.slot >= 0:
            self._runner.leave(request.slot)
        self._memory.release(request)
        with self._condition:
            self._scheduler.remove(request)

    def _report(self) -> None:
        self.metrics.slots.set(self._scheduler.slots_in_use)
        self.metrics.waiting.set(len(self._scheduler.waiting))
        self.metrics.pages.set(self._memory.in_use)
        self.metrics.cached_pages.set(self._memory.cached)
