"""The bounded queue in front of an encoder, which hands out jobs in batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Generic, TypeVar

Job = TypeVar("Job")

#: The mean gap between jobs follows the last so many; before the first it is taken for this many seconds.
_MEMORY, _LONG = 8, 1.0


class JobQueue(Generic[Job]):
    """At most ``limit`` jobs wait, and up to ``batch`` are taken together.

    A pass of an encoder costs the same whether it is full or not. So where jobs come so fast that the missing ones
    should be here before the oldest has waited ``delay`` seconds, :meth:`take` waits for them; a lone job never waits.
    """

    def __init__(self, limit: int, batch: int = 1, delay: float = 0.0) -> None:
        self._limit, self.batch, self._delay = limit, batch, delay
        self._jobs: deque[tuple[Job, float]] = deque()
        self._wake, self._closing = threading.Condition(), False
        self._gap, self._last = _LONG, float("-inf")

    @property
    def full(self) -> bool:
        """Whether a whole batch waits."""
        return len(self._jobs) >= self.batch

    def put(self, job: Job) -> bool:
        """Queue a job; False when ``limit`` of them wait."""
        with self._wake:
            if len(self._jobs) >= self._limit:
                return False
            now = time.monotonic()
            self._gap += (min(now - self._last, _LONG) - self._gap) / _MEMORY
            self._last = now
            self._jobs.append((job, now))
            self._wake.notify()
            return True

    def take(self) -> list[Job]:
        """Jobs that wait, oldest first; blocks until there are some. Empty: the queue is closed, and all are taken."""
        with self._wake:
            self._wake.wait_for(lambda: bool(self._jobs) or self._closing)
            while 0 < (missing := self.batch - len(self._jobs)) < self.batch and not self._closing:
                left = self._jobs[0][1] + self._delay - time.monotonic()
                expected = missing * self._gap
                if expected > left or not self._wake.wait(min(left, 2 * expected)):
                    break
            return [self._jobs.popleft()[0] for _ in range(min(self.batch, len(self._jobs)))]

    def close(self) -> None:
        """Hand out what waits, then nothing."""
        with self._wake:
            self._closing = True
            self._wake.notify()
