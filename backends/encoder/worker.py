"""The thread that owns an encoder, and the bounded queue in front of it.

A stage with one of these is not decoupled, but it replies later: Triton hands over the next request while one is being
encoded, so that the queue, its bound and the sentence that refuses are the stage's own.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from backends.encoder.job_queue import JobQueue
from backends.encoder.metrics import EncoderMetrics
from backends.errors import Internal, Unavailable, VoxstageError

log = logging.getLogger(__name__)

Encoder = TypeVar("Encoder")
Job = TypeVar("Job")
T = TypeVar("T")


class EncoderWorker(Generic[Encoder, Job]):
    """Calls ``work`` with the encoder and up to ``batch`` jobs that wait; it answers them. What it raises is logged.

    Where ``work`` has only started them, on a GPU, it returns what waits for them and answers. That is called at once,
    unless a whole batch waits: then that is started first, so that the GPU need not wait for the host.

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
        delay: float = 0.0,
    ) -> None:
        """Returns when the encoder is loaded. ``name``: of the stage, for errors. ``delay``: see :class:`JobQueue`.

        Raises what ``load`` raises.
        """
        self._name, self._load, self._work = name, load, work
        self._metrics, self._max_waiting = metrics, max_waiting
        self._jobs: JobQueue[Job] = JobQueue(max_waiting, batch, delay)
        self._inside, self._lock = 0, threading.Lock()
        self._loaded: queue.SimpleQueue[Encoder | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)
        self._thread.start()
        if isinstance(loaded := self._loaded.get(), Exception):
            raise loaded if isinstance(loaded, VoxstageError) else Internal(f"the encoder did not load: {loaded}")
        self.encoder: Encoder = loaded

    def put(self, job: Job) -> None:
        """Queue a job. Raises Unavailable when ``max_waiting`` wait; what is being encoded does not wait."""
        self._count(1)
        if not self._jobs.put(job):
            self._count(-1)
            raise Unavailable(f"{self._name} is full: {self._max_waiting} clips wait; try again later")

    def batch(self, count: int) -> None:
        """Take up to so many jobs together from now on: what loading has shown to be right."""
        self._jobs.batch = count

    def close(self) -> None:
        """Encode what is queued, then stop."""
        self._jobs.close()
        self._thread.join()

    def _count(self, change: int) -> None:
        with self._lock:
            self._inside += change
            self._metrics.clips.set(self._inside)

    def _run(self) -> None:
        try:
            encoder: Encoder | Exception = self._load()
        except Exception as error:
            encoder = error
        self._loaded.put(encoder)
        if not isinstance(encoder, Exception):
            self._serve(encoder)

    def _serve(self, encoder: Encoder) -> None:
        begun: Callable[[], None] | None = None
        while True:
            if begun is not None and not self._jobs.full:
                begun()
                begun = None
            if not (jobs := self._jobs.take()):
                return
            waiting, begun = begun, self._begin(encoder, jobs)
            if waiting is not None:
                waiting()

    def _begin(self, encoder: Encoder, jobs: Sequence[Job]) -> Callable[[], None] | None:
        """Work on ``jobs``. Returns what ends them, if they have not ended."""
        answer = self._guarded(len(jobs), lambda: self._work(encoder, jobs))
        if answer is None:
            self._count(-len(jobs))
            return None

        def end() -> None:
            self._guarded(len(jobs), answer)
            self._count(-len(jobs))

        return end

    def _guarded(self, count: int, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception:  # an answer that could not be sent, say; the next jobs are not to blame
            log.exception("%s: jobs (%d) were not answered", self._name, count)
            return None
