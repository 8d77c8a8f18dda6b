"""Notices that the client of a running request has gone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.stage import StageRequest

log = logging.getLogger(__name__)

#: A question is a message to the server and back (31 us), so there are at most 200 of them a second.
_ROUND_SECONDS, _QUESTION_SECONDS = 0.05, 0.005


class HangupWatch:
    """A thread that asks for every open request, 20 times a second while they are few, whether somebody listens.

    For clients of the decoder itself: inside an ensemble a running step never sees its cancel (Triton 2.51).
    """

    def __init__(self, cancel: Callable[[int], None]) -> None:
        """``cancel`` gets the stream whose client has gone, until it is forgotten."""
        self._cancel = cancel
        self._open: dict[int, StageRequest] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decoder-cancels", daemon=True)
        self._thread.start()

    def add(self, stream_id: int, request: StageRequest) -> None:
        """Ask about ``request`` from now on."""
        self._open[stream_id] = request

    def forget(self, stream_id: int) -> None:
        """The stream has ended; nobody asks about its client any more."""
        self._open.pop(stream_id, None)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(max(_ROUND_SECONDS, _QUESTION_SECONDS * len(self._open))):
            for stream_id in list(self._open):
                request = self._open.get(stream_id)
                try:
                    if request is not None and request.cancelled():
                        self._cancel(stream_id)
                except Exception:  # of one stream; the others are still asked about
                    log.exception("the client of a stream could not be asked about")
