"""What an encoder made of clips (codes, or states) by key: the least recently used go first, and nothing is encoded
twice at the same time.

Nobody blocks here. Who asks leaves a waiter, a function that is called once with the codes or with the error. The first
to ask for a key that is not there encodes it (and must call :meth:`VoiceCache.settle`); all who ask meanwhile wait for
the same encode. A failure reaches every waiter of that moment and is then forgotten: the next request tries again.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import Cancelled, VoxstageError
from backends.voices.metrics import CacheMetrics

log = logging.getLogger(__name__)

Codes = NDArray[np.int32]
#: Codes of a voice, or the states of a window.
Result = NDArray[Any] | VoxstageError


class Found(enum.Enum):
    """What :meth:`VoiceCache.ask` did with a waiter."""

    HIT = "it was called with the codes"
    MERGED = "it waits for an encode under way"
    MISS = "it waits, and the caller must encode and settle"


@dataclass(frozen=True, slots=True)
class Waiter:
    """``answer`` is called once. ``gone`` says whether nobody would listen any more."""

    answer: Callable[[Result], None]
    gone: Callable[[], bool] = lambda: False


class VoiceCache:
    """Bounded by bytes. Pinned entries (named voices) do not count against the bound and are never dropped."""

    def __init__(self, max_bytes: int, metrics: CacheMetrics) -> None:
        self.max_bytes, self._metrics = max_bytes, metrics
        self._entries: OrderedDict[bytes, NDArray[Any]] = OrderedDict()
        self._pinned: dict[bytes, NDArray[Any]] = {}
        self._pending: dict[bytes, list[Waiter]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Entries, pinned ones included."""
        with self._lock:
            return len(self._entries) + len(self._pinned)

    def ask(self, key: bytes, waiter: Waiter) -> Found:
        """See :class:`Found`. A hit calls the waiter at once, on the caller's thread."""
        with self._lock:
            codes = self._pinned.get(key)
            if codes is None and key in self._entries:
                self._entries.move_to_end(key)
                codes = self._entries[key]
            if codes is None:
                if key in self._pending:
                    self._pending[key].append(waiter)
                    self._metrics.merged.inc()
                    return Found.MERGED
                self._pending[key] = [waiter]
                self._metrics.misses.inc()
                return Found.MISS
            self._metrics.hits.inc()
        _call(waiter, codes)
        return Found.HIT

    def drop_deserted(self, key: bytes) -> bool:
        """If all who wait for ``key`` have gone, tell them Cancelled and return True: no encode is owed any more."""
        with self._lock:
            waiters = list(self._pending[key])
        # Outside of the lock: it asks the server. Who joins meanwhile keeps the encode alive.
        if not all(waiter.gone() for waiter in waiters):
            return False
        with self._lock:
            if len(self._pending[key]) > len(waiters):
                return False
            del self._pending[key]
        for waiter in waiters:
            _call(waiter, Cancelled("nobody waits for this voice any more"))
        return True

    def settle(self, key: bytes, result: Result, pin: bool = False) -> None:
        """End the encode of ``key``: with what it made, which is kept, or with an error."""
        with self._lock:
            waiters = self._pending.pop(key)
            if isinstance(result, VoxstageError):
                self._metrics.failed.inc()
            else:
                result.flags.writeable = False
                self._keep(key, result, pin)
        for waiter in waiters:
            _call(waiter, result)

    def _keep(self, key: bytes, codes: NDArray[Any], pin: bool) -> None:
        if pin:
            self._pinned[key] = codes
        elif codes.nbytes <= self.max_bytes:
            self._entries[key] = codes
            self._bytes += codes.nbytes
            while self._bytes > self.max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._bytes -= oldest.nbytes
                self._metrics.evicted.inc()
        self._metrics.bytes.set(self._bytes + sum(pinned.nbytes for pinned in self._pinned.values()))


def _call(waiter: Waiter, result: Result) -> None:
    """One waiter that breaks must not keep the others waiting."""
    try:
        waiter.answer(result)
    except Exception:
        log.exception("an answer to a request with a voice failed")
