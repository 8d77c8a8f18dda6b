"""Work that must not delay the thread that computes, in order, on a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Outbox:
    """Runs callables one after another. A failing one is logged and does not stop the next."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Run ``work`` after everything put before it."""
        self._queue.put(work)

    def close(self) -> None:
        """Finish what was put, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("%s: a piece of work failed", self._thread.name)
