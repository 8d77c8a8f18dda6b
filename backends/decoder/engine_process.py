"""A decoder engine in a process of its own, with the face of :class:`~backends.decoder.engine.DecoderEngine`.

Why: Python runs one thread of a process at a time. Triton's stub takes requests and sends responses under the same lock
as the loop that launches steps, and every call into torch gives the lock away, so on a GPU the loop waits for it more
than it computes: 64 streams of Qwen3-ASR-1.7B on an H200 took an iteration from 5 to 19 ms.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import numpy as np

from backends.decoder.engine_messages import (
    Answer,
    Cancel,
    Close,
    Counted,
    Ended,
    Failed,
    Logged,
    NotReady,
    Ready,
    Said,
    Submit,
    read,
    write,
)
from backends.decoder.engine_order import EngineInfo, EngineOrder
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.request import Chunk, DecodeRequest, FinishReason
from backends.errors import Internal, Unavailable
from backends.settings import home

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 30.0


class NoProcess(Exception):
    """The process could not be started, or ended before it said anything."""


@dataclass(eq=False, slots=True)
class _Stream:
    """A request inside, and how many chunks of it have been handed over."""

    request: DecodeRequest
    chunks: int = 0


class EngineProcess:
    """Starts the process and waits until its engine runs.

    ``submit`` and ``cancel`` may be called from any thread; sinks are called from the thread that reads the answers.
    If the process ends by itself, its streams fail, and so does every later request.
    """

    def __init__(self, order: EngineOrder, metrics: DecoderMetrics, lost: Callable[[], None] = lambda: None) -> None:
        """``lost`` is called when the process has ended by itself and its streams know.

        Raises NoProcess, and the VoxstageError that the engine could not be made for.
        """
        self._room = order.config.max_running + order.config.max_waiting
        self._config, self._metrics, self._on_lost = order.config, metrics, lost
        self._streams: dict[int, _Stream] = {}
        self._lock, self._closing, self._fault = threading.Lock(), False, ""
        self._process, self._connection = _start()
        try:
            write(self._connection, order)
            self.info = self._wait()
        except BaseException as error:
            self._end()
            if isinstance(error, EOFError | OSError):
                code = self._process.returncode
                raise NoProcess(f"it ended with code {code} before its engine ran") from error
            raise
        self._reader = threading.Thread(target=self._read, name="engine-answers", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def check_room(self) -> None:
        """Raise Unavailable when the engine is full. Without the lock, so it may be late: ``submit`` decides."""
        if len(self._streams) >= self._room:
            self._metrics.shed.inc()
            raise Unavailable(
                f"{len(self._streams)} requests are in the decoder: max_running {self._config.max_running} and "
                f"max_waiting {self._config.max_waiting} are both reached; try again later"
            )

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request. Raises Unavailable when the engine is full, Internal when it is closing or broken; whatever
        else is wrong with it, its sink is told.
        """
        self.check_room()
        request.timeline.stamp("queued")
        message = pickle.dumps(Submit.of(request), protocol=5)
        with self._lock:
            if self._fault:
                raise Internal(self._fault)
            if self._closing:
                raise Internal("the decoder is shutting down")
            self.check_room()
            self._streams[request.stream_id] = _Stream(request)
            self._report()
            with contextlib.suppress(OSError):  # the reader finds out, and tells everybody
                self._connection.send_bytes(message)

    def cancel(self, stream_id: int) -> None:
        """End a stream before its next step, without another chunk. An unknown id means that it has ended by itself."""
        with self._lock, contextlib.suppress(OSError):
            if stream_id in self._streams:
                write(self._connection, Cancel(stream_id))

    def close(self) -> None:
        """End the process; streams that still run end as cancelled."""
        with self._lock, contextlib.suppress(OSError):
            self._closing = True
            write(self._connection, Close())
        self._reader.join(_CLOSE_SECONDS)
        self._end()

    def _wait(self) -> EngineInfo:
        while True:
            for answer in read(self._connection):
                if isinstance(answer, Ready):
                    return answer.info
                if isinstance(answer, NotReady):
                    raise answer.error
                if isinstance(answer, Logged):
                    log.log(answer.level, "%s", answer.text)

    def _read(self) -> None:
        try:
            while True:
                for answer in read(self._connection):
                    try:
                        self._take(answer)
                    except Exception:  # of one stream's sink; the others are not to blame
                        log.exception("an answer of the engine could not be handed over")
        except Exception as error:
            if not isinstance(error, EOFError | OSError):
                log.exception("the process of the decoder talks nonsense")
                self._process.kill()
            self._lost()

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, Counted):
            self._metrics.gain(answer.changes)
            self._report()
        elif isinstance(answer, Logged):
            log.log(answer.level, "%s", answer.text)
        elif isinstance(answer, Said):
            self._said(answer)
        elif isinstance(answer, Failed | Ended):
            stream = self._streams.pop(answer.stream_id, None)
            if stream is not None and isinstance(answer, Failed):
                stream.request.sink.fail(answer.error)
            elif stream is not None:
                stream.request.sink.end()

    def _said(self, answer: Said) -> None:
        stream, chunk = self._streams[answer.stream_id], answer.chunk
        stream.chunks += 1
        if chunk.final:
            del self._streams[answer.stream_id]
            if chunk.timeline is not None:
                stream.request.timeline.stamps.update(chunk.timeline.stamps)
                chunk = replace(chunk, timeline=stream.request.timeline)
        stream.request.sink.chunk(chunk)

    def _report(self) -> None:
        """A request is counted as waiting from the moment it was queued here: whoever stops the server looks for it."""
        self._metrics.waiting.set(max(0, len(self._streams) - self._metrics.slots.value))

    def _lost(self) -> None:
        """The process has gone: nobody waits for ever, and no request is taken afterwards."""
        with self._lock:
            if not self._closing:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)
                self._fault = f"the process of the decoder has ended with code {self._process.returncode}"
                log.error("%s; every request fails from now on", self._fault)
            streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            sink, nothing = stream.request.sink, np.zeros((0, self.info.rows.codebooks), dtype=np.int32)
            if self._fault:
                self._metrics.failed.inc()
            try:
                if not self._fault:
                    sink.chunk(Chunk(nothing, stream.chunks, True, FinishReason.CANCELLED.value))
                elif stream.chunks:
                    error = str(Internal(self._fault))
                    sink.chunk(Chunk(nothing, stream.chunks, True, FinishReason.ERROR.value, error))
                else:
                    sink.fail(Internal(self._fault))
            except Exception:
                log.exception("a stream could not be ended")
        self._metrics.slots.set(0)
        self._metrics.waiting.set(0)
        if self._fault:
            self._on_lost()

    def _end(self) -> None:
        self._connection.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    """The process and our end of the socket to it. Raises NoProcess."""
    ours, theirs = socket.socketpair()
    root = str(home())
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "backends.decoder.engine_host", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL,
            )  # fmt: skip
    except (OSError, ValueError) as error:
        ours.close()
        raise NoProcess(str(error)) from error
    return process, Connection(ours.detach())


def start_engine_process(order: EngineOrder, metrics: DecoderMetrics, lost: Callable[[], None]) -> EngineProcess | None:
    """An engine in a process of its own; None, counted and said in the log, where no process could be had.

    Raises the VoxstageError that an engine could not be made for, which it could not here either.
    """
    try:
        return EngineProcess(order, metrics, lost)
    except NoProcess as error:
        log.error("no process for the decoder's engine (%s): it runs in the stage's own", error)
        metrics.process_failures.inc()
        return None
