"""Prompts between two decode steps: how many of them are read, together or one by one, and who joins the batch then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from backends.decoder.memory import PageMemory
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.prefill_pass import Piece
from backends.decoder.request import DecodeRequest, Phase
from backends.decoder.runner import Runner
from backends.decoder.scheduler import Scheduler

log = logging.getLogger(__name__)


class PromptReader:
    """Reads at most ``pieces`` pieces at a time, so that running streams never wait for more than those.

    ``start`` looks a prompt up in the prefix cache and gets pages for it; False when there are none. ``fail`` ends
    requests with an error. All of it is the engine's thread.
    """

    def __init__(
        self,
        runner: Runner,
        memory: PageMemory,
        scheduler: Scheduler,
        metrics: DecoderMetrics,
        pieces: int,
        start: Callable[[DecodeRequest], bool],
        fail: Callable[[list[DecodeRequest], Exception], None],
    ) -> None:
        self._runner, self._memory, self._scheduler, self._metrics = runner, memory, scheduler, metrics
        self._pieces, self._start, self._fail = pieces, start, fail

    def read(self) -> None:
        """Read the next pieces of prompts; a request whose prompt is read joins the batch."""
        if not self._scheduler.prefilling:
            return
        started = time.perf_counter()
        if self._runner.pass_pieces:
            self._read_together(self._runner.pass_pieces)
        else:
            for _ in range(self._pieces):
                request = self._scheduler.next_prefill()
                if request is None or not self._read_one(request):
                    break
        self._metrics.prefill_seconds.inc(time.perf_counter() - started)

    def _read_one(self, request: DecodeRequest) -> bool:
        """The next piece of one prompt, or of its audio. False while there are no pages for it."""
        try:
            if not request.pages and not self._start(request):
                return False  # nobody younger to take them from: it waits for those who run
            if self._runner.read_audio(request):
                pass  # the work of one piece
            elif request.stored < request.prefill_rows:
                self._metrics.prefill_rows.inc(self._runner.prefill(request))
            self._join(request)
        except Exception as error:  # this request's prompt alone
            log.exception("a prefill failed")
            self._fail([request], error)
        return True

    def _read_together(self, room: int) -> None:
        """Up to ``room`` pieces, of as many prompts as that takes, in one pass."""
        inside, pieces = list[DecodeRequest](), list[Piece]()
        for request in list(self._scheduler.prefilling):
            if len(pieces) == room:
                break
            if request.phase is not Phase.PREFILL:
                continue  # it gave its pages to an older one just now
            try:
                if not request.pages and not self._start(request):
                    break  # as above
            except Exception as error:
                log.exception("a prefill failed")
                self._fail([request], error)
                continue
            inside.append(request)
            pieces += self._runner.next_pieces(request, room - len(pieces))
        # One that was retracted and came back stands behind younger ones, and may have taken the pages of one of them.
        inside = [request for request in inside if request.phase is Phase.PREFILL]
        pieces = [piece for piece in pieces if piece.request.phase is Phase.PREFILL]
        try:
            self._read_pieces(pieces)
        except Exception:
            log.exception("a pass over %d prompts failed; each is read by itself now", len(inside))
            for request in inside:  # nothing of the pass was noted, so each can be read again
                try:
                    self._read_pieces([piece for piece in pieces if piece.request is request])
                except Exception as error:
                    self._fail([request], error)
        for request in inside:
            if request.phase is Phase.PREFILL:
                try:
                    self._join(request)
                except Exception as error:
                    log.exception("a request could not join the batch")
                    self._fail([request], error)

    def _read_pieces(self, pieces: list[Piece]) -> None:
        if pieces:
            self._metrics.prefill_rows.inc(self._runner.read(pieces))
            self._metrics.prefill_passes.inc()

    def _join(self, request: DecodeRequest) -> None:
        """Let a request decode if its prompt is read."""
        if self._runner.is_read(request):
            self._memory.remember(request, request.prefill_rows)
            self._runner.join(request)
            self._scheduler.run(request)
