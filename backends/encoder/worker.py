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
T = TypeVar("T")


class EncoderWorker(Generic[Encoder, Job]):
    """Calls ``work`` with the encoder and up to ``batch`` jobs that wait; it answers them. What it raises is logged.

    Where ``work`` has only started them, on a GPU, it returns what waits for them and answers. That is called when the
    next jobs have been started, so that the GPU need not wait for the host, or at once if none wait.

    ``load`` makes the encoder on the worker's thread: priorities are a thread's, and a runtime's threads inherit them.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Encoder],
        work: Callable[[Encoder, Sequence[Job]], Callable[[], None] | None],
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
            begun: Callable[[], None] | None = None
            while begun is not None or self._wait():
                jobs = self._next()
                waiting, begun = begun, self._begin(encoder, jobs) if jobs else None
                if waiting is not None:
                    waiting()

    def _begin(self, encoder: Encoder, jobs: Sequence[Job]) -> Callable[[], None] | None:
        """Work on ``jobs``. Returns what ends them, if they have not ended."""
        answer = self._guarded(len(jobs), lambda: self._work(encoder, jobs))
        if answer is None:
            self._ended(len(jobs))
            return None

        def end() -> None:
            self._guarded(len(jobs), answer)
            self._ended(len(jobs))

        return end

    def _guarded(self, count: int, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception:  # an answer that could not be sent, say; the next jobs are not to blame
            log.exception("%s: jobs (%d) were not answered", self._name, count)
            return None

    def _ended(self, count: int) -> None:
        with self._wake:
            self._count(-count)

    def _wait(self) -> bool:
        """Until a job waits. False when there will be none."""
        with self._wake:
            self._wake.wait_for(lambda: bool(self._queue) or self._closing)
            return bool(self._queue)

    def _next(self) -> list[Job]:
        """Jobs that wait now."""
        with self._wake:
            return [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
