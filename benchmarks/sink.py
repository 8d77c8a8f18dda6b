"""Where a benchmark's request sends its chunks."""

from __future__ import annotations

import threading
import time

from backends.decoder.request import Chunk
from backends.errors import VoxstageError


class Sink:
    """Keeps no audio. ``first`` and ``done`` tell when; ``first_at``: time of the first (``perf_counter``, s)."""

    def __init__(self) -> None:
        self.first, self.done = threading.Event(), threading.Event()
        self.first_at = 0.0

    def chunk(self, chunk: Chunk) -> None:
        if not self.first.is_set():
            self.first_at = time.perf_counter()
            self.first.set()
        if chunk.final:
            self.done.set()

    def fail(self, error: VoxstageError) -> None:
        raise error

    def end(self) -> None:
        self.done.set()
