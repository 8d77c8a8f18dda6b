"""The stage ``asr_encoder``: features of windows in, their states out; several a pass, on a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.asr.encoders import Features, Qwen3ASRStates, StateEncoder, load_encoder
from backends.asr.log_mel import HOP, RATE
from backends.asr.places import same_in_every_place
from backends.asr.settings import AsrEncoderSettings
from backends.decoder.engine_stage import choose_dtype
from backends.device import give_way, resolve_device, use_threads
from backends.encoder.metrics import EncoderMetrics
from backends.encoder.worker import EncoderWorker
from backends.errors import Internal, InvalidArgument, VoxstageError
from backends.heap import keep_freed_memory
from backends.settings import home

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

_GPU_PASS = 4
#: A caller is asked for when its window has waited so long; asking costs a message to the server and back.
_PATIENCE_SECONDS = 0.5
#: A window, and when it came.
_Job = tuple["StageRequest", Features, float]
_Alive = list[tuple["StageRequest", Features]]


class AsrEncoderStage:
    """One thread owns the encoder (:class:`EncoderWorker`); ``execute`` checks and queues.

    What waits is encoded together, in passes of one shape and seen at load to treat every place alike, so nobody's
    states depend on who waited too.
    """

    Settings = AsrEncoderSettings
    one_instance = False
    replies_later = True

    def __init__(self, settings: AsrEncoderSettings, context: StageContext) -> None:
        keep_freed_memory()
        self.settings, self.metrics, self._context = settings, EncoderMetrics(), context
        self._device = resolve_device(settings.device)
        self._folder = home() / settings.checkpoint
        clips = settings.pass_clips or (1 if self._device.type == "cpu" else _GPU_PASS)
        self._pass_clips = clips
        self._worker: EncoderWorker[StateEncoder, _Job] = EncoderWorker(
            context.name,
            self._load,
            self._work,
            self.metrics,
            settings.max_waiting,
            clips,
            settings.pass_delay_ms / 1e3,
        )
        self._worker.batch(self._pass_clips)
        self._mels, self._frames = self._worker.encoder.mels, self._worker.encoder.frames
        context.log.info("%s: %s on %s, %d windows a pass", context.name, self._folder, self._device, self._pass_clips)

    def execute(self, request: StageRequest) -> None:
        """Queue one window. Raises InvalidArgument for other shapes, Unavailable when the queue is full."""
        self.metrics.requests.inc()
        try:
            self._worker.put((request, self._read(request), time.monotonic()))
        except VoxstageError:
            self.metrics.refused.inc()
            raise

    def close(self) -> None:
        """Encode what is queued, then stop."""
        self._worker.close()

    def _read(self, request: StageRequest) -> Features:
        features, frames = request.tensor("features"), request.tensor("frames")
        if features is None or frames is None:
            raise InvalidArgument("frames" if features is not None else "features", "is missing")
        if features.ndim != 3 or features.shape[1] != self._mels or not features.shape[0] * features.shape[2]:
            wanted = f"[parts, {self._mels}, {self._frames or 'frames'}]"
            raise InvalidArgument("features", f"has shape {list(features.shape)}, expected {wanted}")
        if (self._frames and features.shape[2] != self._frames) or (not self._frames and len(features) != 1):
            wanted = f"parts of {self._frames} frames" if self._frames else "one part"
            raise InvalidArgument("features", f"has shape {list(features.shape)}, expected {wanted}")
        if frames.shape != (len(features),) or frames.min() < 1 or frames.max() > features.shape[2]:
            raise InvalidArgument("frames", f"{frames.tolist()} are not {len(features)} numbers of frames")
        return _writable(features), frames.astype(np.int32)

    def _load(self) -> StateEncoder:
        """On the encoder's own thread: its priority and its number of threads are what computes."""
        settings = self.settings
        if self._device.type == "cpu":
            give_way(settings.nice)
        use_threads(settings.num_threads, self._device)
        dtype, dummy = choose_dtype(settings.dtype, self._device), settings.load_format == "dummy"
        encoder = load_encoder(self._folder, self._device, dtype, self._pass_clips, dummy)
        with torch.inference_mode():
            alike = same_in_every_place(encoder, self._pass_clips) if self._pass_clips > 1 else True
        if not alike:
            self._context.log.warning(
                "%s: states differ by place in a pass of %d windows on this machine: one a pass",
                *(self._context.name, self._pass_clips),
            )
            self._pass_clips = 1
            encoder = load_encoder(self._folder, self._device, dtype, 1, dummy)
        if isinstance(encoder, Qwen3ASRStates) and self._device.type == "cuda" and settings.cuda_graph:
            with torch.inference_mode():
                encoder.capture(self.metrics, int(settings.cuda_graph_min_free_gib * 2**30))
        return encoder

    def _work(self, encoder: StateEncoder, jobs: Sequence[_Job]) -> Callable[[], None] | None:
        """Start a pass; the result waits for it and answers."""
        alive = []
        late = time.monotonic() - _PATIENCE_SECONDS
        for request, features, came in jobs:
            if came < late and request.cancelled():
                request.fail(Internal("the caller has gone"))
            else:
                alive.append((request, features))
        if not alive:
            return None
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                end = encoder.begin([features for _, features in alive])
        except Exception as error:
            self._failed(alive, error)
            return None
        spent = time.perf_counter() - began
        return lambda: self._answer(alive, end, spent)

    def _answer(self, alive: _Alive, end: Callable[[], list[NDArray[np.float32]]], spent: float) -> None:
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                found = end()
        except Exception as error:
            self._failed(alive, error)
            return
        self.metrics.seconds.inc(spent + time.perf_counter() - began)
        for (request, (_, frames)), states in zip(alive, found, strict=True):
            self.metrics.audio_seconds.inc(int(frames.sum()) * HOP / RATE)
            request.reply({"states": states}, final=True)

    def _failed(self, alive: _Alive, error: Exception) -> None:
        self._context.log.exception("windows could not be encoded")
        for request, _ in alive:
            request.fail(Internal(f"the encoder failed: {type(error).__name__}: {error}"))


def _writable(array: NDArray[Any]) -> NDArray[np.float32]:
    """Float32, and memory of our own where the request's is read-only: torch wants to be able to write."""
    return array.astype(np.float32, copy=not array.flags.writeable)
