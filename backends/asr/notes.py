"""What ``asr_decoder`` has to say to ``asr_prompt``: which windows are done, and which transcriptions are over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgument

log = logging.getLogger(__name__)

#: In the order in which ``asr_prompt`` acts on them.
DONE, STOP = "done", "stop"


class Notes:
    """Sends notes from a thread of its own. A note costs a request inside the server, so those that gather while one
    is under way go out together.
    """

    def __init__(self, send: Callable[[Mapping[str, NDArray[Any]]], None]) -> None:
        """``send`` gets int64 [n] of transcriptions by name, one or both; it may block and raise."""
        self._send = send
        self._waiting: dict[str, list[int]] = {}
        self._wake, self._closing = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="asr-notes", daemon=True)
        self._thread.start()

    def put(self, name: str, transcription: int) -> None:
        """Leave a note: DONE or STOP."""
        with self._wake:
            self._waiting.setdefault(name, []).append(transcription)
            self._wake.notify()

    def close(self) -> None:
        """Send what was put, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while notes := self._next():
            try:
                self._send({name: np.array(numbers, dtype=np.int64) for name, numbers in notes.items()})
            except Exception:
                log.exception("asr_prompt was not told: %s", notes)

    def _next(self) -> dict[str, list[int]]:
        with self._wake:
            self._wake.wait_for(lambda: bool(self._waiting) or self._closing)
            notes, self._waiting = self._waiting, {}
            return notes


def read_notes(name: str, tensor: NDArray[Any] | None) -> list[int]:
    """The transcriptions of a tensor int64 [n]; none when it is absent. Raises InvalidArgument for what is none."""
    if tensor is None:
        return []
    if tensor.ndim != 1 or tensor.dtype != np.int64 or not tensor.size:
        raise InvalidArgument(name, f"is {tensor.dtype} {list(tensor.shape)}, expected int64 [n], n of 1 or more")
    if tensor.min() < 0:
        raise InvalidArgument(name, f"{tensor.min()} is below 0, the smallest value")
    return [int(number) for number in tensor]
