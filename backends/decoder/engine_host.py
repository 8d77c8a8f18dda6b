"""The process of a decoder engine: ``python -m backends.decoder.engine_host FD``, started by a stage.

Nothing of Triton is here. Orders come over the socket and are read by one thread; what the engine's thread has to say
goes into a queue, and another thread sends all that lies in it as one message. The process ends when it is told to, or
when the other end of the socket is gone.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection

from backends.decoder.engine import DecoderEngine
from backends.decoder.engine_messages import (
    Answer,
    Cancel,
    Close,
    Counted,
    Ended,
    Failed,
    Logged,
    NotReady,
    Order,
    Ready,
    Said,
    read,
    write,
)
from backends.decoder.engine_order import EngineOrder, build_engine
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.request import Chunk
from backends.errors import Internal, VoxstageError
from backends.heap import keep_freed_memory

_METRICS_PERIOD_SECONDS = 0.05


class _Sink:
    """What the engine says about one stream, into the queue."""

    def __init__(self, put: queue.SimpleQueue[Answer | None], stream_id: int) -> None:
        self._queue, self._stream_id = put, stream_id

    def chunk(self, chunk: Chunk) -> None:
        self._queue.put(Said(self._stream_id, chunk))

    def fail(self, error: VoxstageError) -> None:
        self._queue.put(Failed(self._stream_id, error))

    def end(self) -> None:
        self._queue.put(Ended(self._stream_id))


class _Log(logging.Handler):
    """Lines of the log, for the log of the stage."""

    def __init__(self, put: queue.SimpleQueue[Answer | None]) -> None:
        super().__init__()
        self._queue = put

    def emit(self, record: logging.LogRecord) -> None:
        self._queue.put(Logged(record.levelno, self.format(record)))


class EngineHost:
    """Owns the engine of this process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._metrics = DecoderMetrics()
        self._closing = threading.Event()

    def run(self, order: EngineOrder) -> None:
        """Make the engine, then serve until it is closed."""
        log = logging.getLogger("backends")
        log.handlers, log.propagate = [_Log(self._answers)], False
        log.setLevel(logging.INFO)
        reader = threading.Thread(target=self._read, name="orders", daemon=True)
        sender = threading.Thread(target=self._send, name="answers", daemon=True)
        reader.start()
        sender.start()
        try:
            engine, info = build_engine(order, self._metrics)
        except Exception as error:
            if not isinstance(error, VoxstageError):
                log.exception("the engine could not be made")
                error = Internal(f"{type(error).__name__}: {error}")
            self._answers.put(NotReady(error))
        else:
            self._answers.put(Ready(info))
            counter = threading.Thread(target=self._count, name="metrics", daemon=True)
            counter.start()
            self._serve(engine)
            self._closing.set()
            counter.join()
        self._answers.put(None)
        sender.join()

    def _serve(self, engine: DecoderEngine) -> None:
        while not isinstance(order := self._orders.get(), Close):
            if isinstance(order, Cancel):
                engine.cancel(order.stream_id)
                continue
            sink = _Sink(self._answers, order.stream_id)
            try:
                engine.submit(order.request(sink))
            except VoxstageError as error:
                sink.fail(error)
            except Exception as error:
                logging.getLogger(__name__).exception("a request could not be queued")
                sink.fail(Internal(f"{type(error).__name__}: {error}"))
        engine.close()

    def _read(self) -> None:
        """A thread of its own, so that the end of the stage is noticed while the model loads."""
        try:
            while True:
                self._orders.put(read(self._connection))
        except Exception as error:
            if not self._closing.is_set():
                if not isinstance(error, EOFError | OSError):
                    traceback.print_exc()
                os._exit(1)  # the stage is gone, or talks nonsense: nobody to answer, and the driver's threads may hang

    def _send(self) -> None:
        while True:
            batch = [self._answers.get()]
            while not self._answers.empty():
                batch.append(self._answers.get())
            said = [answer for answer in batch if answer is not None]
            try:
                if said:
                    write(self._connection, said)
            except OSError:
                os._exit(1)
            if None in batch:
                return

    def _count(self) -> None:
        while not self._closing.wait(_METRICS_PERIOD_SECONDS):
            self._tell_metrics()
        self._tell_metrics()

    def _tell_metrics(self) -> None:
        if changes := self._metrics.changes():
            self._answers.put(Counted(changes))


def main() -> None:
    """Serve the socket whose file descriptor is the first argument."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group; the server says when to end
        signal.signal(number, signal.SIG_IGN)
    keep_freed_memory()
    connection = Connection(int(sys.argv[1]))
    order: EngineOrder = read(connection)
    EngineHost(connection).run(order)


if __name__ == "__main__":
    main()
