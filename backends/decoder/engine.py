"""The decoder engine: one thread that owns the model and gives every request its turn."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

import torch

from backends.decoder.metrics import DecoderMetrics
from backends.decoder.request import DecodeRequest, FinishReason
from backends.decoder.runner import Runner
from backends.decoder.scheduler import Scheduler
from backends.device import use_threads
from backends.errors import Internal, VoxstageError
from backends.models.protocol import DecoderModel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes of the engine; the stage's config.pbtxt documents them."""

    max_running: int = 16
    max_waiting: int = 256
    max_positions: int = 1024
    prefill_rows: int = 32
    prefill_pieces: int = 1
    deterministic: bool = True
    num_threads: int = 0


class DecoderEngine:
    """Continuous batching: requests join and leave between steps, and every step runs at the full bucket.

    One iteration: take what came in, admit, read at most ``prefill_pieces`` pieces of prompts (so that running streams
    never wait for more than those), then one decode step. ``submit`` and ``cancel`` may be called from any thread; the
    sinks are called from the engine's.
    """

    def __init__(self, model: DecoderModel, config: EngineConfig, metrics: DecoderMetrics | None = None) -> None:
        self.model, self.config, self.metrics = model, config, metrics or DecoderMetrics()
        self._runner = Runner(
            model, config.max_running, config.max_positions, config.prefill_rows, config.deterministic
        )
        self._scheduler = Scheduler(config.max_running, config.max_waiting)
        self._condition = threading.Condition()
        self._cancels: deque[int] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="decoder", daemon=True)
        self._thread.start()

    @property
    def buckets(self) -> tuple[int, ...]:
        """Row counts of a decode step, ascending."""
        return self._runner.buckets

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request. Raises Unavailable when the engine is full or closing."""
        with self._condition:
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
        """End a stream before its next step. Unknown ids mean that it has ended by itself: nothing happens."""
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
        """Raise RuntimeError unless every request is gone and every slot is back."""
        with self._condition:
            self._scheduler.check_idle()

    def _loop(self) -> None:
        use_threads(self.config.num_threads)
        with torch.inference_mode():
            while self._take():
                try:
                    self._prefill()
                    if self._scheduler.running:
                        self._step()
                except Exception as error:  # a fault of the model or the device: its streams end, the engine goes on
                    log.exception("a decode iteration failed")
                    self._fail(list(self._scheduler.running.values()), error)
        for request in self._scheduler.all():
            self._leave(request)
            request.sink.end()

    def _take(self) -> bool:
        """Wait for work, apply cancels, admit. False when the engine closes."""
        with self._condition:
            self._report()
            while not (self._closing or self._cancels or len(self._scheduler)):
                self._condition.wait()
            while self._cancels:
                request = self._scheduler.find(self._cancels.popleft())
                if request is not None:
                    self._leave(request)
                    self.metrics.cancelled.inc()
                    request.sink.end()
            self._scheduler.admit()
            self._report()
            return not self._closing

    def _prefill(self) -> None:
        """Read the next pieces of prompts; a request whose prompt is read joins the batch."""
        for _ in range(self.config.prefill_pieces):
            request = self._scheduler.next_prefill()
            if request is None:
                return
            started = time.perf_counter()
            try:
                last = len(request.rows) - 1
                if request.prefilled < last:
                    before = request.prefilled
                    request.prefilled = self._runner.prefill(request.slot, request.rows, before)
                    self.metrics.prefill_rows.inc(request.prefilled - before)
                if request.prefilled == last:
                    self._runner.join(request.slot, request.rows[last], last, request.sampling)
                    self._scheduler.run(request)
            except Exception as error:  # this request's prompt alone
                log.exception("a prefill failed")
                self._fail([request], error)
            self.metrics.prefill_seconds.inc(time.perf_counter() - started)

    def _step(self) -> None:
        started = time.perf_counter()
        result = self._runner.step()
        self.metrics.steps.inc()
        self.metrics.step_seconds.inc(time.perf_counter() - started)
        for slot, codes in result.frames.items():
            request = self._scheduler.running[slot]
            if codes is None:
                self._finish(request, FinishReason.STOP)
                continue
            self.metrics.frames.inc()
            request.add_frame(codes)
            if request.frames == request.max_frames:
                self._finish(request, FinishReason.LENGTH)

    def _finish(self, request: DecodeRequest, reason: FinishReason) -> None:
        self._leave(request)
        self.metrics.finished.inc()
        request.finish(reason)

    def _fail(self, requests: list[DecodeRequest], error: Exception) -> None:
        """End ``requests`` with ``error``: as an error before the first chunk, in-band after it."""
        typed = error if isinstance(error, VoxstageError) else Internal(f"the decoder failed: {error}")
        for request in requests:
            self._leave(request)
            self.metrics.failed.inc()
            if request.chunks == 0:
                request.sink.fail(typed)
            else:
                request.pending.clear()
                request.finish(FinishReason.ERROR, str(typed))

    def _leave(self, request: DecodeRequest) -> None:
        """The single exit: out of the scheduler, the slot back."""
        if request.slot >= 0:
            self._runner.leave(request.slot)
        with self._condition:
            self._scheduler.remove(request)

    def _report(self) -> None:
        self.metrics.slots.set(self._scheduler.slots_in_use)
        self.metrics.waiting.set(len(self._scheduler.waiting))
