"""One stream of speech or of text: a gRPC call of its own, read in the background, handed out chunk by chunk.

Why a call a request: Triton cancels all requests of a gRPC stream together. Calls share the channel, so this costs
no connection. Why read in the background: a consumer that is slow (a player, a disk) then changes neither the arrival
times nor the deadline between chunks. What is buffered is at most the answer to one request.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import grpc

from client.errors import (
    Cancelled,
    ConnectionFailed,
    ServerError,
    SpeechError,
    StreamBroken,
    StreamTimeout,
    broken_by_server,
    count,
    from_message,
)

# How long to wait for the server to close a call after its last response. Cancelling a request that is about to end
# by itself could still count as a cancel inside the server.
END_GRACE_S = 2.0


class Chunk(Protocol):
    """What every chunk has, whatever it carries: see AudioChunk."""

    @property
    def index(self) -> int: ...
    @property
    def final(self) -> bool: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def received_at(self) -> float: ...


C = TypeVar("C", bound=Chunk)
S = TypeVar("S", bound="ChunkStream[Any]")


@dataclass(frozen=True)
class Deadlines:
    """Seconds to wait for the first chunk, and for every later one."""

    first_chunk: float
    chunk: float


@dataclass(frozen=True)
class Source(Generic[C]):
    """Where a stream comes from.

    open_call  sends the request; returns the call, an asynchronous iterator of (result, error)
    read       a result and its arrival → the chunk and the text of the output ``error``
    address    host and port, for messages
    cargo      what the chunks carry, for messages: ``audio`` or ``text``
    """

    open_call: Callable[[], Any]
    read: Callable[[Any, float], tuple[C, str]]
    deadlines: Deadlines
    address: str
    cargo: str


class ChunkStream(Generic[C]):
    """An asynchronous iterator of chunks. The request goes out at the first ``anext``, or at ``async with``.

    The request is cancelled on the server by ``aclose()``, by leaving ``async with``, by breaking out of ``async for``
    and by dropping the object. A stream that was closed from elsewhere raises Cancelled: it never just ends early.
    """

    def __init__(self, source: Source[C]) -> None:
        self._source = source
        self._queue: asyncio.Queue[C | BaseException | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: BaseException | None = None
        self._ended = False
        self._closing = threading.Event()
        self.started_at = time.monotonic()

    async def __aenter__(self: S) -> S:
        self._start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[C]:
        return _Loop(self)

    async def __anext__(self) -> C:
        self._start()
        if not self._ended:
            item = await self._queue.get()
            if item is not None and not isinstance(item, BaseException):
                return item
            self._ended, self._end = True, item
        if self._end is None:
            raise StopAsyncIteration
        raise self._end

    def cancel(self) -> None:
        """Cancel the request without waiting. Does nothing when the stream has ended. Safe from any thread."""
        self._closing.set()
        if self._task is None:
            if not self._ended:
                self._ended, self._end = True, _closed()
        elif not self._task.done() and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def aclose(self) -> None:
        """Cancel the request and wait until the call is over."""
        self.cancel()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def _start(self) -> None:
        if self._task is None and not self._ended:
            self.started_at = time.monotonic()
            self._loop = asyncio.get_running_loop()
            # The task holds the queue but not this object, so that dropping this object is noticed and cancels it.
            self._task = self._loop.create_task(_read(self._source, self._queue, self._closing))
            # A task that is cancelled before its first step never runs its own ending.
            self._task.add_done_callback(partial(_put_closed, self._queue))

    def __del__(self) -> None:
        self.cancel()


class _Loop(Generic[C]):
    """What ``async for`` holds, and nothing else does: its end is the end of the loop, by ``break`` or otherwise."""

    def __init__(self, stream: ChunkStream[C]) -> None:
        self._stream = stream

    def __aiter__(self) -> _Loop[C]:
        return self

    async def __anext__(self) -> C:
        try:
            return await self._stream.__anext__()
        except BaseException:  # a cancelled task keeps this frame, and so this object, alive in its traceback
            self._stream.cancel()
            raise

    def __del__(self) -> None:
        self._stream.cancel()


async def _read(source: Source[C], queue: asyncio.Queue[C | BaseException | None], closing: threading.Event) -> None:
    """Read one call to its end into ``queue``: chunks, then None (all is well) or the error to raise.

    ``closing``: the stream has been closed. Before Python 3.12 ``wait_for`` loses a cancellation that comes together
    with what it waits for, and the call would be read on.
    """
    call: Any = None
    chunks = 0
    end: BaseException | None = None
    try:
        call = source.open_call()
        final = False
        while not final:
            chunk = await _next_chunk(call, chunks, source)
            if closing.is_set():
                raise asyncio.CancelledError
            final = chunk.final
            if final:
                await _expect_end(call, chunks + 1)
            queue.put_nowait(chunk)
            chunks += 1
    except asyncio.CancelledError:
        end = _closed()
    except grpc.aio.AioRpcError as error:
        end = from_rpc_error(error, source.address, chunks, source.cargo)
    except Exception as error:  # a fault of the client itself must reach the consumer, not the loop's log
        end = error
    finally:
        if call is not None:
            call.cancel()  # tells the server when it is still at work, does nothing otherwise
        queue.put_nowait(end)


async def _next_chunk(call: Any, chunks: int, source: Source[C]) -> C:
    """The next chunk of the call, checked against its place in the stream."""
    seconds = source.deadlines.chunk if chunks else source.deadlines.first_chunk
    try:
        result, error = await asyncio.wait_for(call.__anext__(), seconds)
    except asyncio.TimeoutError:
        which = f"No chunk followed {count(chunks, 'chunk')}" if chunks else "No first chunk came"
        raise StreamTimeout(
            f"{which} within {seconds:g} s, and the request was cancelled. The server is stuck or overloaded; "
            "check it with `python -m client health`, or allow a longer timeout"
        ) from None
    except StopAsyncIteration:
        if chunks == 0:
            raise StreamBroken(
                "The server ended the stream without any answer. An input may be missing; else its log says more"
            ) from None
        raise StreamBroken(
            f"The server ended the stream after {count(chunks, 'chunk')} without a last chunk. "
            f"The {source.cargo} is incomplete; send the request again"
        ) from None
    received_at = time.monotonic()
    if error is not None:
        message = str(error.message())
        await _end_of(call)
        raise _at(received_at, broken_by_server(message, chunks, source.cargo) if chunks else from_message(message))
    chunk, reason = source.read(result, received_at)
    if chunk.index != chunks:
        raise StreamBroken(
            f"Chunk {chunk.index} arrived where chunk {chunks} was due. The {source.cargo} has a gap or is out of "
            "order; send the request again"
        )
    if chunk.finish_reason == "error":
        await _end_of(call)
        raise _at(received_at, broken_by_server(reason, chunks, source.cargo))
    return chunk


def _at(received_at: float, error: SpeechError) -> SpeechError:
    error.received_at = received_at
    return error


async def _expect_end(call: Any, chunks: int) -> None:
    if await _end_of(call):
        raise StreamBroken(f"The server sent more after the last of {count(chunks, 'chunk')}. This is a server fault")


async def _end_of(call: Any) -> bool:
    """Wait for the server to close the call. True when something came instead."""
    try:
        await asyncio.wait_for(call.__anext__(), END_GRACE_S)
    except (StopAsyncIteration, asyncio.TimeoutError, grpc.aio.AioRpcError):
        return False
    return True


def from_rpc_error(error: grpc.RpcError, address: str, chunks: int = 0, cargo: str = "audio") -> SpeechError:
    """The typed error for a call that gRPC itself ended, after ``chunks`` good chunks."""
    code, details = error.code(), error.details() or "no details"
    if chunks:
        return StreamBroken(
            f"The connection to {address} broke after {count(chunks, 'chunk')} ({code.name}: {details}). "
            f"The {cargo} is incomplete; send the request again"
        )
    if code == grpc.StatusCode.UNAVAILABLE:
        return no_server(address, details)
    if code == grpc.StatusCode.CANCELLED:
        return Cancelled(f"The server at {address} cancelled the request ({details})", detail=details)
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return from_message(f"INVALID_ARG {details}")
    return ServerError(f"The call to {address} failed ({code.name}: {details})", detail=details)


def no_server(address: str, details: str) -> ConnectionFailed:
    """The error for an address where nothing listens. gRPC nests its reasons; the innermost says it."""
    reason = details.rpartition("remote host: ")[2].strip() or details
    return ConnectionFailed(
        f"No Triton server answers at {address} ({reason}). Start one with `python serve.py`, "
        "or give the address of its gRPC port",
        detail=details,
    )


def _put_closed(queue: asyncio.Queue[C | BaseException | None], task: asyncio.Task[None]) -> None:
    queue.put_nowait(_closed())


def _closed() -> Cancelled:
    return Cancelled("The stream was closed before its last chunk")
