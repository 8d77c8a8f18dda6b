"""The thread that owns an encoder, and the bounded queue in front of it.

A stage with one of these is not decoupled, but it replies later: Triton hands over the next request while one is being
encoded, so that the queue, its bound and the sentence that refuses are the stage's own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from backends.encoder.metrics import EncoderMetrics
from backends.errors import Internal, Unavailable, VoxstageError

log = logging.getLogger(__name__)

Encoder = TypeVar("Encoder")
Job = TypeVar("Job")


class EncoderWorker(Generic[Encoder, Job]):
    """Calls ``work`` with the encoder and up to ``batch`` jobs that wait; it answers them. What it raises is logged.

    ``load`` makes the encoder on the worker's thread: priorities are a thread's, and a runtime's threads inherit them.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Encoder],
        work: Callable[[Encoder, Sequence[Job]], None],
        metrics: EncoderMetrics,
        max_waiting: int,
        batch: int = 1,
    ) -> None:
        """Returns when the encoder is loaded. ``name``: of the stage, for errors. Raises what ``load`` raises."""
        self._name, self._load, self._work = name, load, work
        self._metrics, self._max_waiting, self._batch = metrics, max_waiting, batch
        self._queue: deque[Job] = deque()
        self._inside = 0
        self._wake, self._closing = threading.Condition(), False
        self._loaded: list[Encoder | Exception] = []
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)
        self._thread.start()
        with self._wake:
            self._wake.wait_for(lambda: bool(self._loaded))
        if isinstance(loaded := self._loaded[0], Exception):
            raise loaded if isinstance(loaded, VoxstageError) else Internal(f"the encoder did not load: {loaded}")
        self.encoder: Encoder = loaded

    def put(self, job: Job) -> None:
        """Queue a job. Raises Unavailable when ``max_waiting`` wait; what is being encoded does not wait."""
        with self._wake:
            if len(self._queue) >= self._max_waiting:
                raise Unavailable(f"{self._name} is full: {self._max_waiting} clips wait; try again later")
            self._queue.append(job)
            self._count(1)
            self._wake.notify()

    def close(self) -> None:
        """Encode what is queued, then stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _count(self, change: int) -> None:
        self._inside += change
        self._metrics.clips.set(self._inside)

    def _run(self) -> None:
        try:
            encoder: Encoder | Exception = self._load()
        except Exception as error:
            encoder = error
        with self._wake:
            self._loaded.append(encoder)
            self._wake.notify()
        if not isinstance(encoder, Exception):
            while jobs := self._next():
                try:
                    self._work(encoder, jobs)
                except Exception:  # an answer that could not be sent, say; the next jobs are not to blame
                    log.exception("%s: jobs (%d) were not answered", self._name, len(jobs))
                with self._wake:
                    self._count(-len(jobs))

    def _next(self) -> list[Job]:
        with self._wake:
            self._wake.wait_for(lambda: bool(self._queue) or self._closing)
            return [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
