"""The stage ``audio_encoder``: a clip in, its codes out. One clip at a time, on a thread of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backends.checkpoint import spoken_codebooks
from backends.encoder.clip import ClipLimits, no_encoder
from backends.encoder.digest import graph_key
from backends.encoder.metrics import EncoderMetrics
from backends.encoder.runtime import Encoder, OnnxEncoder, TorchEncoder
from backends.encoder.settings import EncoderSettings
from backends.encoder.worker import EncoderWorker
from backends.errors import Cancelled, Internal, InvalidArgument, VoxstageError
from backends.settings import home

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")


class AudioEncoderStage:
    """One thread owns the encoder (:class:`EncoderWorker`); ``execute`` checks and queues.

    With a codec that only decodes the stage loads and refuses every clip: speech without a clip goes on.
    """

    Settings = EncoderSettings
    one_instance = False
    replies_later = True

    def __init__(self, settings: EncoderSettings, context: StageContext) -> None:
        self.settings, self.metrics, self._context = settings, EncoderMetrics(), context
        checkpoint = home() / settings.checkpoint
        self._folder, self._codebooks = checkpoint / "codec", spoken_codebooks(checkpoint)
        self._worker: EncoderWorker[Encoder, tuple[StageRequest, NDArray[np.float32]]] | None = None
        self._refusal = no_encoder(self._folder)
        if self._refusal is not None:
            context.log.warning("%s: every clip will be refused: %s", context.name, self._refusal)
            return
        self.limits = ClipLimits.load(self._folder, settings.max_seconds)
        self._worker = EncoderWorker("audio_encoder", self._load, self._work, self.metrics, settings.max_waiting)
        context.log.info("%s: %s with %s", context.name, self._folder, self._worker.encoder.name)

    def execute(self, request: StageRequest) -> None:
        """Queue one clip. Raises InvalidArgument for a clip out of its limits, Unavailable when the queue is full."""
        self.metrics.requests.inc()
        try:
            if self._worker is None:
                raise InvalidArgument("audio", f"cannot be encoded: {self._refusal}")
            audio = request.tensor("audio")
            if audio is None:
                raise InvalidArgument("audio", "is missing")
            self.limits.check(audio)
            self._worker.put((request, audio[0]))
        except VoxstageError:
            self.metrics.refused.inc()
            raise

    def close(self) -> None:
        """Encode what is queued, then stop."""
        if self._worker is not None:
            self._worker.close()

    def _work(self, encoder: Encoder, jobs: Sequence[tuple[StageRequest, NDArray[np.float32]]]) -> None:
        for request, audio in jobs:
            self._answer(encoder, request, audio)

    def _answer(self, encoder: Encoder, request: StageRequest, audio: NDArray[np.float32]) -> None:
        try:
            if request.cancelled():
                raise Cancelled("the caller has gone")
            began = time.perf_counter()
            codes = encoder.encode(audio)
            self.metrics.seconds.inc(time.perf_counter() - began)
            self.metrics.audio_seconds.inc(len(audio) / (self.limits.sampling_rate * self.limits.channels))
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
            use_threads(self.settings.num_threads, device)
            return TorchEncoder(self._folder, device, self._codebooks)
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
        path = cache / f"{graph_key(self._folder, self.limits.max_frames, self._codebooks)}.onnx"
        if path.exists():
            return path
        from backends.encoder.export import export_encoder, write_atomically

        model = export_encoder(self._folder, self.limits.max_frames, self._codebooks)
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
