"""The stage ``asr_prompt``: audio in, windows with their states out, never more of one request than its share.

A request is checked and counted by the thread that takes it. Threads of the stage's own decode its audio, cut it at
silence, and make the features of its windows; ``asr_encoder`` turns these into states. Each window is one response, and
``asr_decoder`` says when it is done, so that the next one may begin.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backends.asr.family import load_family
from backends.asr.log_mel import RATE
from backends.asr.metrics import AsrPromptMetrics
from backends.asr.notes import DONE, STOP, read_notes
from backends.asr.recording import AUDIO_INPUTS, Recording, Samples, read_recording
from backends.asr.settings import AsrPromptSettings
from backends.asr.share import WindowShare
from backends.asr.window import WindowMessage
from backends.asr.windows import Window, split
from backends.asr.wishes import WISHES, Wishes, read_wishes
from backends.errors import Internal, InvalidArgument, Unavailable, VoxstageError
from backends.heap import keep_freed_memory
from backends.prompt.parameters import refuse_unknown
from backends.settings import home
from backends.voices.cache import Found, Result, VoiceCache, Waiter

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

INPUTS = (*AUDIO_INPUTS, *WISHES)
_ENCODER = "asr_encoder"
#: How much of what a model hears at once a window may fill, where audio is cut: 29.5 of Whisper's 30 s.
_FILLED = 59 / 60


@dataclass(eq=False, slots=True)
class _Transcription:
    """One request while it is inside. ``windows`` and ``share`` are set once its audio is read."""

    id: int
    request: StageRequest
    wishes: Wishes
    stamps: list[float]
    touched: float
    samples: Samples | None = None
    windows: list[Window] = field(default_factory=list)
    share: WindowShare | None = None
    stopped: bool = False
    replied: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class AsrPromptStage:
    """One instance: it knows what is inside."""

    Settings = AsrPromptSettings

    def __init__(self, settings: AsrPromptSettings, context: StageContext) -> None:
        keep_freed_memory()
        self.settings, self.metrics, self._context = settings, AsrPromptMetrics(), context
        folder = home() / settings.checkpoint
        self.family = load_family(folder)
        self.max_window_seconds = min(settings.max_window_seconds, self.family.max_seconds)
        self.cache = VoiceCache(int(settings.cache_mib * 2**20), self.metrics) if settings.cache_mib else None
        self._inside: dict[int, _Transcription] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(settings.workers, "asr-audio", lambda: _lower_priority(settings.nice))
        context.log.info("%s: %s, windows of up to %g s", context.name, folder, self.max_window_seconds)

    def execute(self, request: StageRequest) -> None:
        """Take a request, or what ``asr_decoder`` has to say about one. Raises VoxstageError for what is refused."""
        if self._told(request):
            request.finish()
            return
        received = time.monotonic()
        self.metrics.requests.inc()
        with self._lock:
            self._check_room(received)
        try:
            refuse_unknown(request.parameters(), "asr", INPUTS)
            tensors = {name: request.tensor(name) for name in INPUTS}
            wishes = read_wishes(tensors, self.family, self.settings.max_context_bytes)
            settings = self.settings
            recording = read_recording(tensors, settings.max_seconds, settings.max_file_mib * 2**20)
        except VoxstageError:
            self.metrics.refused.inc()
            raise
        del tensors
        request.release()
        transcription = _Transcription(secrets.randbits(63), request, wishes, [received], received)
        with self._lock:
            self._check_room(received)
            self._inside[transcription.id] = transcription
            self.metrics.inside.set(len(self._inside))
        self._pool.submit(self._open, transcription, recording)

    def _told(self, request: StageRequest) -> bool:
        """Act on what ``asr_decoder`` says; False for a request of a client."""
        done, over = (read_notes(name, request.tensor(name)) for name in (DONE, STOP))
        for number in done:
            self._window_done(number)
        for number in over:
            self._stop(number)
        return bool(done or over)

    def close(self) -> None:
        """End the threads; Triton calls it when no request is left."""
        self._pool.shutdown()

    def _check_room(self, now: float) -> None:
        """Raise Unavailable when full. Whoever has heard nothing for very long (its decoder is lost) makes room."""
        if len(self._inside) >= self.settings.max_requests:
            for old in [t for t in self._inside.values() if now - t.touched > self.settings.idle_seconds]:
                self._forget(old)
        if len(self._inside) >= self.settings.max_requests:
            self.metrics.shed.inc()
            raise Unavailable(
                f"{len(self._inside)} transcriptions are inside, the limit (asr_prompt.max_requests); try again later"
            )

    def _open(self, transcription: _Transcription, recording: Recording) -> None:
        """Read the audio and begin with its first windows."""
        try:
            if transcription.request.cancelled():
                self._end(transcription)
                return
            samples = recording.load(self.settings.max_seconds)
            windows = self.cut(samples)
            transcription.stamps.append(time.monotonic())
            with self._lock:
                self.metrics.audio_seconds.inc(len(samples) / RATE)
            transcription.samples, transcription.windows = samples, windows
            transcription.share = WindowShare(max(1, len(windows)), self.settings.windows_per_request)
            begun = transcription.share.take()
            for index in begun[1:]:
                self._pool.submit(self._window, transcription, index)
        except Exception as error:
            self._fail(transcription, error)
            return
        for index in begun[:1]:
            self._window(transcription, index)

    def cut(self, samples: Samples) -> list[Window]:
        """Windows of audio float32 [n]; of several, silent ones are left out. What fits into one is heard as it is."""
        if len(samples) <= int(self.max_window_seconds * RATE):
            return [Window(0, len(samples))]
        # A window that speech fills to its last sample makes Whisper drop most of its text (docs/performance.md).
        windows = split(samples, min(self.max_window_seconds, self.family.max_seconds * _FILLED))
        heard = [window for window in windows if not window.silent]
        with self._lock:
            self.metrics.silent.inc(len(windows) - len(heard))
        return heard

    def _go_on(self, transcription: _Transcription) -> None:
        if transcription.share is not None:
            for index in transcription.share.take():
                self._pool.submit(self._window, transcription, index)

    def _window(self, transcription: _Transcription, index: int) -> None:
        """Features, states, response of one window."""
        try:
            if transcription.stopped:
                return
            if not transcription.windows:  # long, and silent all through
                self._reply(transcription, index, Window(0, 0), np.zeros((0, 1), dtype=np.float32), b"", [])
                return
            assert transcription.samples is not None
            window = transcription.windows[index]
            samples = transcription.samples[window.start : window.end]
            digest = hashlib.blake2b(samples.data, digest_size=32).digest()
            stamps: list[float] = []

            def answer(result: Result) -> None:
                if isinstance(result, VoxstageError):
                    self._fail(transcription, result, index)
                    return
                now = time.monotonic()  # of a window that was cached or being encoded: both stations are passed
                self._reply(transcription, index, window, result, digest, [*(stamps or [now]), now])

            if self.cache is None:
                answer(self._encode(samples, stamps))
            elif self.cache.ask(digest, Waiter(answer, lambda: transcription.stopped)) is Found.MISS:
                self.cache.settle(digest, self._encode(samples, stamps))
        except Exception as error:
            self._fail(transcription, error, index)

    def _encode(self, samples: Samples, stamps: list[float]) -> Result:
        """States float32 [N, width] of a window, or why there are none; notes when its features were made."""
        try:
            began = time.monotonic()
            features, frames = self.family.features(samples)
            stamps.append(time.monotonic())
            states = self._context.infer(_ENCODER, {"features": features, "frames": frames}, ["states"])["states"]
            with self._lock:
                self.metrics.feature_seconds.inc(stamps[0] - began)
                self.metrics.encode_seconds.inc(time.monotonic() - stamps[0])
            return states
        except VoxstageError as error:
            return error
        except Exception as error:
            self._context.log.exception("a window could not be encoded")
            return Internal(f"{type(error).__name__}: {error}")

    def _reply(
        self,
        transcription: _Transcription,
        index: int,
        window: Window,
        states: NDArray[np.float32],
        digest: bytes,
        stamps: list[float],
        error: str = "",
    ) -> None:
        wishes, share = transcription.wishes, transcription.share
        assert share is not None
        message = WindowMessage(
            transcription=transcription.id,
            window=index,
            last=index == share.count - 1,
            begin=window.start / RATE,
            end=window.end / RATE,
            digest=digest.hex(),
            language=wishes.language,
            context=wishes.context,
            max_tokens=wishes.max_tokens,
            temperature=wishes.temperature,
            # Another seed for each window: equal words in two of them must not draw the same numbers.
            seed=(wishes.seed + index) % 2**63,
            stamps=(*transcription.stamps, *stamps),
            error=error,
        )
        tensors = message.tensors(states)
        with self._lock:
            self.metrics.windows.inc()
        with transcription.lock:  # the last one to go must not overtake another
            transcription.replied = True
            transcription.touched = time.monotonic()
            transcription.request.reply(tensors, final=share.sent())

    def _fail(self, transcription: _Transcription, error: Exception, index: int | None = None) -> None:
        """As an error before the first response, else in-band: after it an error would leak the request (2.51)."""
        if not isinstance(error, VoxstageError):
            self._context.log.error("a transcription failed", exc_info=error)
            error = Internal(f"{type(error).__name__}: {error}")
        with transcription.lock:
            first = not transcription.replied
            if first:
                transcription.stopped = True
        if first or index is None:
            with self._lock:
                self.metrics.refused.inc(isinstance(error, InvalidArgument))
                self._forget(transcription)
            transcription.request.fail(error)
        else:
            nothing = np.zeros((0, 1), dtype=np.float32)
            self._reply(transcription, index, transcription.windows[index], nothing, b"", [], str(error))

    def _window_done(self, number: int) -> None:
        """``asr_decoder`` has said all of a window."""
        transcription = self._inside.get(number)
        if transcription is not None and transcription.share is not None:
            transcription.touched = time.monotonic()
            transcription.share.done()
            self._go_on(transcription)

    def _stop(self, number: int) -> None:
        """``asr_decoder`` has said all there is to say, or nobody listens any more."""
        transcription = self._inside.get(number)
        if transcription is not None:
            self._end(transcription)

    def _end(self, transcription: _Transcription) -> None:
        with self._lock:
            self._forget(transcription)
        transcription.request.finish()

    def _forget(self, transcription: _Transcription) -> None:
        transcription.stopped = True
        if transcription.share is not None:
            transcription.share.stop()
        self._inside.pop(transcription.id, None)
        self.metrics.inside.set(len(self._inside))


def _lower_priority(nice: int) -> None:
    """Of the calling thread alone (Linux)."""
    if nice:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
