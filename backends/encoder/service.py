"""The stage ``audio_encoder``: a clip in, its codes out. One clip at a time, on a thread of its own.

Not decoupled, but it replies later: Triton hands over the next request while a clip is being encoded, so that the
queue, its bound and the sentence that refuses are this stage's.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backends.encoder.clip import ClipLimits, no_encoder
from backends.encoder.digest import graph_key
from backends.encoder.metrics import EncoderMetrics
from backends.encoder.runtime import Encoder, OnnxEncoder, TorchEncoder
from backends.encoder.settings import EncoderSettings
from backends.errors import Cancelled, Internal, InvalidArgument, Unavailable, VoxstageError
from backends.settings import home

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")


class AudioEncoderStage:
    """One thread owns the encoder; ``execute`` checks and queues.

    With a codec that only decodes the stage loads and refuses every clip: speech without a clip goes on.
    """

    Settings = EncoderSettings
    one_instance = False
    replies_later = True

    def __init__(self, settings: EncoderSettings, context: StageContext) -> None:
        self.settings, self.metrics, self._context = settings, EncoderMetrics(), context
        self._folder = home() / settings.checkpoint / "codec"
        self._queue: deque[tuple[StageRequest, NDArray[np.float32]]] = deque()
        self._inside = 0
        self._wake, self._closing = threading.Condition(), False
        self._loaded: list[Encoder | Exception] = []
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)
        self._refusal = no_encoder(self._folder)
        if self._refusal is not None:
            context.log.warning("%s: every clip will be refused: %s", context.name, self._refusal)
            return
        self.limits = ClipLimits.load(self._folder, settings.max_seconds)
        self._thread.start()
        with self._wake:
            self._wake.wait_for(lambda: bool(self._loaded))
        if isinstance(loaded := self._loaded[0], Exception):
            raise loaded if isinstance(loaded, VoxstageError) else Internal(f"the encoder did not load: {loaded}")
        context.log.info("%s: %s with %s", context.name, self._folder, loaded.name)

    def execute(self, request: StageRequest) -> None:
        """Queue one clip. Raises InvalidArgument for a clip out of its limits, Unavailable when the queue is full."""
        self.metrics.requests.inc()
        try:
            if self._refusal is not None:
                raise InvalidArgument("audio", f"cannot be encoded: {self._refusal}")
            audio = request.tensor("audio")
            if audio is None:
                raise InvalidArgument("audio", "is missing")
            self.limits.check(audio)
            with self._wake:
                # The clip that is being encoded is not waiting.
                if len(self._queue) >= self.settings.max_waiting:
                    raise Unavailable(f"audio_encoder is full: {self.settings.max_waiting} clips wait; try again later")
                self._queue.append((request, audio[0]))
                self._count(1)
                self._wake.notify()
        except VoxstageError:
            self.metrics.refused.inc()
            raise

    def close(self) -> None:
        """Encode what is queued, then stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._refusal is None:
            self._thread.join()

    def _count(self, change: int) -> None:
        self._inside += change
        self.metrics.clips.set(self._inside)

    def _run(self) -> None:
        try:
            encoder: Encoder | Exception = self._load()
        except Exception as error:
            encoder = error
        with self._wake:
            self._loaded.append(encoder)
            self._wake.notify()
        if not isinstance(encoder, Exception):
            while (job := self._next()) is not None:
                self._answer(encoder, *job)
                with self._wake:
                    self._count(-1)

    def _next(self) -> tuple[StageRequest, NDArray[np.float32]] | None:
        with self._wake:
            self._wake.wait_for(lambda: bool(self._queue) or self._closing)
            return self._queue.popleft() if self._queue else None

    def _answer(self, encoder: Encoder, request: StageRequest, audio: NDArray[np.float32]) -> None:
        try:
            if request.cancelled():
                raise Cancelled("the caller has gone")
            began = time.perf_counter()
            codes = encoder.encode(audio)
            self.metrics.seconds.inc(time.perf_counter() - began)
            self.metrics.audio_seconds.inc(len(audio) / self.limits.sampling_rate)
            request.reply({"codes": codes[None]}, final=True)
        except VoxstageError as error:
            request.fail(error)
        except Exception as error:
            self._context.log.exception("a clip could not be encoded")
            request.fail(Internal(f"the encoder failed: {type(error).__name__}: {error}"))

    def _load(self) -> Encoder:
        """On the encoder's own thread: priorities are a thread's, and the runtime's threads inherit this one's."""
        if self._runtime() == "torch":
            from backends.device import resolve_device, use_threads

            device = resolve_device(self.settings.device)
            if device.type == "cpu":
                self._be_nice()
            use_threads(self.settings.num_threads)
            return TorchEncoder(self._folder, device)
        model = self._exported()
        self._be_nice()
        return OnnxEncoder(model, self.settings.num_threads or max(1, _cores() // 2))

    def _runtime(self) -> str:
        """``onnx`` on a CPU, ``torch`` on a GPU. Looks for a GPU without torch, which takes seconds to import."""
        settings = self.settings
        gpu = settings.device.startswith("cuda")
        if settings.device == "auto" and any(Path(path).exists() for path in _GPU_FILES):
            import torch

            gpu = torch.cuda.is_available()
        if settings.runtime == "onnx" and gpu:
            raise InvalidArgument(
                "audio_encoder.runtime", f"'onnx' runs on a CPU, and device {settings.device!r} is a GPU here"
            )
        return settings.runtime if settings.runtime != "auto" else ("torch" if gpu else "onnx")

    def _exported(self) -> Path | bytes:
        """The graph from the cache; made, which imports torch, at the first start with a checkpoint."""
        cache = home() / self.settings.cache
        path = cache / f"{graph_key(self._folder, self.limits.max_frames)}.onnx"
        if path.exists():
            return path
        from backends.encoder.export import export_encoder, write_atomically

        model = export_encoder(self._folder, self.limits.max_frames)
        try:
            write_atomically(path, model)
        except OSError as error:
            self._context.log.warning("%s cannot be written (%s): exported again at every start", cache, error)
            return model
        return path

    def _be_nice(self) -> None:
        os.nice(self.settings.nice)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
