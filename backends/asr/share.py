"""How many windows of one transcription are inside at once: it keeps an hour of audio flat in memory."""

from __future__ import annotations

import threading


class WindowShare:
    """Hands out window numbers 0 ... count - 1 in order, at most ``limit`` of them ahead of those that are done.

    Any thread may call any method.
    """

    def __init__(self, count: int, limit: int) -> None:
        """Raises ValueError unless both are at least 1."""
        if count < 1 or limit < 1:
            raise ValueError(f"count {count} and limit {limit}: both must be at least 1")
        self.count, self.limit = count, limit
        self._taken = self._done = self._sent = 0
        self._stopped = False
        self._lock = threading.Lock()

    def take(self) -> list[int]:
        """The windows that may begin now. Each number is handed out once; none after :meth:`stop`."""
        with self._lock:
            if self._stopped:
                return []
            first, self._taken = self._taken, min(self.count, self._done + self.limit)
            return list(range(first, self._taken))

    def done(self) -> None:
        """One window has left; another may begin."""
        with self._lock:
            self._done += 1

    def sent(self) -> bool:
        """Note that a window went on to the decoder. True for the last one to go."""
        with self._lock:
            self._sent += 1
            return self._sent == self.count

    def stop(self) -> None:
        """Nothing begins any more."""
        with self._lock:
            self._stopped = True

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def inside(self) -> int:
        """Windows that have begun and are not done."""
        with self._lock:
            return self._taken - self._done
