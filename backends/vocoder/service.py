"""The stage ``tts_vocoder``: chunks of codes in, audio out, several streams a step.

It is also the one who notices that a client has gone: inside an ensemble Triton shows a cancel to the next step only,
so the vocoder sees it on the next chunk and tells the decoder (docs/architecture.md).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.device import give_way, resolve_device, use_threads
from backends.errors import Internal, Unavailable, VoxstageError
from backends.fields import read_format, scalar
from backends.outbox import Outbox
from backends.settings import home
from backends.timeline import Timeline
from backends.vocoder.engine import CodeChunk
from backends.vocoder.engines import hold_seconds, load_engine
from backends.vocoder.metrics import VocoderMetrics
from backends.vocoder.pcm import to_format
from backends.vocoder.schedule import Chunk, StepScheduler
from backends.vocoder.settings import VocoderSettings

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

_TOMBSTONES = 4096


@dataclass(slots=True)
class _Job:
    """One chunk as it came in."""

    request: StageRequest
    stream: int
    index: int
    codes: NDArray[np.int32]
    final: bool
    finish_reason: str
    error: str
    format: str
    timeline: str


@dataclass(slots=True)
class _Stream:
    slot: int
    touched: float
    first_audio: float = 0.0


class VocoderStage:
    """One thread owns the engine and the streams; ``execute`` only queues."""

    Settings = VocoderSettings

    def __init__(self, settings: VocoderSettings, context: StageContext) -> None:
        device = resolve_device(settings.device)
        use_threads(settings.num_threads, device)
        folder = home() / settings.checkpoint / "codec"
        self.settings, self.metrics, self._context = settings, VocoderMetrics(), context
        self.vocoder = load_engine(settings, folder, device, self.metrics)
        hold = hold_seconds(self.vocoder, settings)
        self._steps: StepScheduler[_Job] = StepScheduler(self.vocoder.step_streams, hold)
        self._streams: dict[int, _Stream] = {}
        self._dead: OrderedDict[int, None] = OrderedDict()
        self._no_slot: OrderedDict[int, list[_Job]] = OrderedDict()
        self._inbox: deque[_Job] = deque()
        self._wake, self._closing = threading.Condition(), False
        self._hangups = Outbox("vocoder-hangups")
        context.log.info("%s: %s on %s, %d streams a step", context.name, folder, device, self.vocoder.step_streams)
        self._device = device
        self._thread = threading.Thread(target=self._loop, name="vocoder", daemon=True)
        self._thread.start()

    def execute(self, request: StageRequest) -> None:
        """Queue one chunk."""

        def one(name: str) -> Any:
            tensor = request.tensor(name)
            if tensor is None:
                raise Internal(f"{name} is missing; the inputs of tts_vocoder are the outputs of tts_decoder")
            return tensor if name == "codes" else tensor.reshape(-1)[0]

        job = _Job(
            request=request,
            stream=int(one("stream_id")),
            index=int(one("chunk_index")),
            codes=one("codes"),
            final=bool(one("final")),
            finish_reason=one("finish_reason").decode(),
            error=one("error").decode(),
            format=read_format(request.tensor("format")),
            timeline=one("timeline").decode(),
        )
        with self._wake:
            self._inbox.append(job)
            self._wake.notify()

    def close(self) -> None:
        """Decode what is queued, then stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._hangups.close()

    def _loop(self) -> None:
        use_threads(self.settings.num_threads, self._device)
        if self._device.type == "cpu":
            give_way(self.settings.nice)
        while self._take():
            step = self._steps.next_step(math.inf if self._closing else time.monotonic())
            try:
                if step:
                    self._run([chunk.payload for chunk in step])
            except Exception as error:
                self._context.log.exception("a vocoder step failed")
                for chunk in step:
                    self._break_anyhow(chunk.payload, error)

    def _take(self) -> bool:
        """Wait for chunks and sort them in. False when closing and nothing is left."""
        # Before the wait, not after: an idle vocoder must not show the stream that ended last for another second.
        self.metrics.streams.set(len(self._streams))
        with self._wake:
            while not (self._inbox or self._closing or (delay := self._steps.delay(time.monotonic())) == 0.0):
                if not self._wake.wait(timeout=1.0 if delay is None else delay):
                    break
            jobs = list(self._inbox)
            self._inbox.clear()
        for job in jobs:
            try:
                self._sort_in(job)
            except Exception as error:
                self._context.log.exception("a chunk could not be sorted in")
                self._break_anyhow(job, error)
        self._close_idle()
        self.metrics.streams.set(len(self._streams))
        return not (self._closing and not jobs and not len(self._steps))

    def _sort_in(self, job: _Job) -> None:
        if job.stream in self._dead:
            job.request.finish()
        elif job.request.cancelled():
            self.metrics.cancelled.inc()
            self._end(job, "", "", tell_decoder=not job.final)
        elif job.error:
            self._end(job, job.finish_reason, job.error, tell_decoder=False)
        else:
            self._admit(job)

    def _admit(self, job: _Job) -> None:
        """Open a slot for a new stream and queue its chunk; with all slots taken, the stream's chunks wait for one."""
        stream = self._streams.get(job.stream)
        if job.stream in self._no_slot:
            self._no_slot[job.stream].append(job)
            return
        if stream is None:
            if job.index != 0:
                self._break(job, Internal(f"chunk {job.index} came for a stream that the vocoder does not hold"))
                return
            try:
                stream = self._streams[job.stream] = _Stream(self.vocoder.open(), time.monotonic())
            except Unavailable:
                self._no_slot[job.stream] = [job]
                return
        stream.touched = time.monotonic()
        self._steps.add(Chunk(job.stream, len(job.codes), job), stream.touched)

    def _run(self, jobs: list[_Job]) -> None:
        """Decode one step and answer each of its chunks."""
        started = time.perf_counter()
        chunks = [CodeChunk(self._streams[job.stream].slot, torch.from_numpy(job.codes), job.final) for job in jobs]
        results = self.vocoder.decode_each(chunks)
        if held := self._steps.held_seconds:
            self.metrics.held.inc()
            self.metrics.held_seconds.inc(held)
        self.metrics.steps.inc()
        self.metrics.step_seconds.inc(time.perf_counter() - started)
        for job, result in zip(jobs, results, strict=True):
            if job.index == self.settings.debug_fail_chunk:
                result = Internal(f"debug_fail_chunk is {job.index}")
            if isinstance(result, VoxstageError):
                self._break(job, result)
                continue
            try:
                self._deliver(job, result.cpu().numpy())
            except Exception as error:  # this stream's own: a sample that is no number, say
                self._break_anyhow(job, error)

    def _deliver(self, job: _Job, audio: NDArray[np.float32]) -> None:
        """Answer a chunk, and close its stream if it was the last."""
        self._answer(job, audio, job.final, job.finish_reason, "")
        seconds = len(audio) / self.vocoder.channels / self.vocoder.sampling_rate
        margin = self._steps.sent(job.stream, seconds, time.monotonic())
        if margin is not None:
            self.metrics.margin.observe(margin)
        self.metrics.chunks.inc()
        self.metrics.frames.inc(len(job.codes))
        if job.final:
            self._forget(job.stream)

    def _break_anyhow(self, job: _Job, error: Exception) -> None:
        """:meth:`_break` for what nobody expected; the thread, and with it all other streams, goes on."""
        try:
            self._break(job, error if isinstance(error, VoxstageError) else Internal(f"the vocoder failed: {error}"))
        except Exception:
            self._context.log.exception("a broken stream could not be told")
            job.request.finish()

    def _break(self, job: _Job, error: VoxstageError) -> None:
        """A stream that breaks ends in-band: an error response in mid-stream would leak the request."""
        self.metrics.failed.inc()
        self._end(job, "error", str(error), tell_decoder=not job.final)

    def _end(self, job: _Job, reason: str, error: str, tell_decoder: bool) -> None:
        """Answer ``job`` as the last chunk of its stream, and let nothing of the stream follow.

        Without a ``reason`` nobody listens, and the answer is empty: a response into an ensemble whose client has gone
        can break its count of what is in flight (Triton 2.51).
        """
        waiting = self._forget(job.stream)
        self._dead[job.stream] = None
        while len(self._dead) > _TOMBSTONES:
            self._dead.popitem(last=False)
        if reason:
            self._answer(job, np.zeros(0, dtype=np.float32), True, reason, error)
        else:
            job.request.finish()
        for other in waiting:
            other.request.finish()
        if tell_decoder:
            self._tell_decoder(job.stream)

    def _tell_decoder(self, stream: int) -> None:
        self._hangups.put(lambda: self._context.call("tts_decoder", {"cancel": scalar(stream, np.int64)}))

    def _answer(self, job: _Job, audio: NDArray[np.float32], final: bool, reason: str, error: str) -> None:
        job.request.reply(
            {
                "audio": to_format(audio, job.format),
                "sample_rate": scalar(self.vocoder.sampling_rate, np.int32),
                "channels": scalar(self.vocoder.channels, np.int32),
                "chunk_index": scalar(job.index, np.int32),
                "final": scalar(final, np.bool_),
                "finish_reason": scalar(reason, np.object_),
                "error": scalar(error, np.object_),
                "timeline": scalar(self._timeline(job, len(audio) > 0), np.object_),
            },
            final=True,
        )

    def _timeline(self, job: _Job, has_audio: bool) -> str:
        """The decoder's stamps with our own, relative to the start; empty before the last chunk."""
        stream = self._streams.get(job.stream)
        now = time.monotonic()
        if stream is not None and not stream.first_audio and has_audio:
            stream.first_audio = now
        if not job.timeline:
            return ""
        timeline = Timeline.from_json(job.timeline)
        timeline.stamp("vocoder_first", stream.first_audio or now if stream else now)
        timeline.stamp("vocoder_last", now)
        for name, histogram in self.metrics.spans.items():
            if (span := timeline.spans().get(name)) is not None:
                histogram.observe(span)
        return json.dumps(timeline.relative())

    def _forget(self, stream: int) -> list[_Job]:
        """Free the stream's slot for the stream that waited longest for one; return its own waiting chunks."""
        waiting = self._no_slot.pop(stream, [])
        waiting += [chunk.payload for chunk in self._steps.remove(stream)]
        held = self._streams.pop(stream, None)
        if held is not None:
            self.vocoder.close(held.slot)
            if self._no_slot:
                _, jobs = self._no_slot.popitem(last=False)
                for job in jobs:
                    self._admit(job)
        return waiting

    def _close_idle(self) -> None:
        """Close streams whose next chunk never came, so that a lost message cannot hold a slot for ever."""
        oldest = time.monotonic() - self.settings.stream_idle_seconds
        for stream in [key for key, held in self._streams.items() if held.touched < oldest]:
            self.metrics.idle.inc()
            self._forget(stream)
            self._dead[stream] = None
            self._tell_decoder(stream)
