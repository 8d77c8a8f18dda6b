"""Where requests wait for the codes of their voice, away from the thread that takes requests.

Three kinds of work, so that none waits behind a slower one: what is known already is answered by the thread that asks
(a named voice) or by one thread that only digests and looks up (a clip); decoding and encoding have a few threads of
their own, of low priority, so that a storm of clips does not take the processor from the decoder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backends.encoder.clip import ClipLimits
from backends.errors import Internal, Unavailable, VoxstageError
from backends.voices.cache import Codes, Found, Result, VoiceCache, Waiter
from backends.voices.clip import PREPROCESSING
from backends.voices.metrics import VoiceMetrics
from backends.voices.named import NamedVoice

log = logging.getLogger(__name__)

#: Encodes samples float32 [n] (whole frames) to codes int32 [frames, codebooks]. Raises VoxstageError.
Encode = Callable[[NDArray[np.float32]], Codes]


class Clip(Protocol):
    """A voice as it was given: a file, samples, or a named one."""

    def parts(self) -> tuple[bytes, ...]:
        """What makes it differ from others."""
        ...

    def prepare(self, wanted: ClipLimits) -> NDArray[np.float32]:
        """What the encoder reads, float32 [frames * hop]. Raises InvalidArgument."""
        ...


class VoiceDesk:
    """Owns the cache and the threads. ``ask`` never blocks and never raises anything but Unavailable."""

    def __init__(
        self,
        wanted: ClipLimits,
        encode: Encode,
        identity: bytes,
        metrics: VoiceMetrics,
        *,
        workers: int,
        max_waiting: int,
        cache_bytes: int,
        nice: int = 0,
    ) -> None:
        """``identity``: digest of what turns samples into codes. ``nice``: of the threads that encode, 0 ... 19."""
        self.wanted, self._encode_samples, self._identity = wanted, encode, identity
        self.cache = VoiceCache(cache_bytes, metrics)
        self._metrics, self._max_waiting = metrics, max_waiting
        self._lock, self._waiting, self._closing = threading.Lock(), 0, False
        self._reader = ThreadPoolExecutor(1, "voice-reader")
        self._encoders = ThreadPoolExecutor(workers, "voice-encoder", lambda: _lower_priority(nice))
        self._keys: dict[str, bytes] = {}

    def ask(self, clip: Clip, answer: Callable[[Result], None], gone: Callable[[], bool] = lambda: False) -> None:
        """Call ``answer`` once with codes or an error, from any thread, this one included.

        ``gone`` is asked before an encode begins: it does not, when it holds for all who wait for it; they are answered
        with Cancelled. Raises Unavailable when ``max_waiting`` requests wait already.
        """
        with self._lock:
            if self._waiting >= self._max_waiting:
                self._metrics.turned_away.inc()
                raise Unavailable(
                    f"{self._waiting} requests wait for a voice, the limit (tts_prompt.max_waiting_voices)"
                )
            self._count(1)

        def leave(result: Result) -> None:
            with self._lock:
                self._count(-1)
            answer(result)

        waiter = Waiter(leave, gone)
        if isinstance(clip, NamedVoice):
            self._look_up(clip, waiter)
        else:
            self._reader.submit(self._look_up, clip, waiter)

    def encode_named(self, voices: list[NamedVoice]) -> None:
        """Begin to encode named voices, without anybody waiting for them."""
        for voice in voices:
            self._look_up(voice, Waiter(lambda result: None))

    def close(self) -> None:
        """Answer all who still wait with Unavailable, and end the threads."""
        self._closing = True
        self._reader.shutdown()
        self._encoders.shutdown()

    def key(self, clip: Clip) -> bytes:
        """Digest of the clip and of all that turns it into codes."""
        if isinstance(clip, NamedVoice):
            if clip.name not in self._keys:
                self._keys[clip.name] = self._digest(clip)
            return self._keys[clip.name]
        return self._digest(clip)

    def _digest(self, clip: Clip) -> bytes:
        digest = hashlib.blake2b(self._identity, digest_size=32)
        for part in clip.parts():
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()

    def _count(self, change: int) -> None:
        self._waiting += change
        self._metrics.waiting.set(self._waiting)

    def _look_up(self, clip: Clip, waiter: Waiter) -> None:
        try:
            key = self.key(clip)
            if self.cache.ask(key, waiter) is Found.MISS:
                self._encoders.submit(self._encode, key, clip)
        except Exception as error:
            log.exception("a voice could not be looked up")
            waiter.answer(Internal(f"{type(error).__name__}: {error}"))

    def _encode(self, key: bytes, clip: Clip) -> None:
        pin = isinstance(clip, NamedVoice)
        if not pin and self.cache.drop_deserted(key):
            return
        result: Result
        started = time.perf_counter()
        try:
            if self._closing:
                raise Unavailable("the server is stopping")
            result = self._encode_samples(clip.prepare(self.wanted))
        except VoxstageError as error:
            result = error
        except Exception as error:
            log.exception("a clip could not be encoded")
            result = Internal(f"{type(error).__name__}: {error}")
        with self._lock:
            self._metrics.seconds.inc(time.perf_counter() - started)
        self.cache.settle(key, result, pin)


def encoder_identity(checkpoint: Path, dtype: str) -> bytes:
    """Digest of what turns samples into codes: the codec's files by name, size and time, its config, our own steps."""
    digest = hashlib.blake2b(f"{PREPROCESSING}\0{dtype}\0".encode(), digest_size=32)
    for path in sorted((checkpoint / "codec").iterdir()):
        if path.suffix == ".json":
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        elif path.is_file():
            state = path.stat()
            digest.update(f"{path.name}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return digest.digest()


def _lower_priority(nice: int) -> None:
    """Of the calling thread alone (Linux)."""
    if nice:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
