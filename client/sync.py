"""The synchronous clients: the asyncio clients on one background thread, so that there is one implementation."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Iterator
from typing import Any, Generic, TypeVar

from client.aio import AsyncSpeechClient, AsyncTranscriber
from client.chunk import AudioChunk
from client.connection import Connection
from client.errors import ClientClosed
from client.health import Health
from client.request import SpeechRequest, TranscriptionRequest
from client.speech import Speech
from client.stream import C, ChunkStream
from client.tensors import Audio
from client.transcript import Transcript, TranscriptChunk

T = TypeVar("T")
A = TypeVar("A", bound=Connection)
Self = TypeVar("Self", bound="_SyncClient[Any]")
SelfStream = TypeVar("SelfStream", bound="SyncStream[Any]")


class _SyncClient(Generic[A]):
    """An asyncio client behind methods that wait."""

    def __init__(self, client: A) -> None:
        self._client = client
        self._loop = _shared_loop()
        # Runs on close(), when the object is dropped, and at the end of the process.
        self._finalizer = weakref.finalize(self, _close, self._client, self._loop)

    @property
    def url(self) -> str:
        return self._client.url

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel every stream and close the connection. Who waits for a chunk in another thread gets Cancelled."""
        self._finalizer()

    def health(self) -> Health:
        """Ask the server and run a canary. Never raises for a server that is ill: the answer says what is wrong."""
        return self._run(self._client.health())

    def metadata(self) -> dict[str, Any]:
        """As Connection.metadata."""
        return self._run(self._client.metadata())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._finalizer.alive:
            work.close()
            raise ClientClosed("This client was closed; make a new one")
        return _wait(work, self._loop)


class SpeechClient(_SyncClient[AsyncSpeechClient]):
    """Streams speech from a Voxstage server. All methods may be called from any thread; streams are independent.

    The parameters, the errors and the meaning of everything are those of AsyncSpeechClient.

        with SpeechClient() as client:
            for chunk in client.stream("Hello.", seed=7):
                play(chunk.audio)
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        model: str = "tts",
        chunk_timeout: float = 10.0,
        first_chunk_timeout: float = 60.0,
    ) -> None:
        super().__init__(
            AsyncSpeechClient(url, model=model, chunk_timeout=chunk_timeout, first_chunk_timeout=first_chunk_timeout)
        )

    def stream(self, text: str | bytes | SpeechRequest, **params: Any) -> SyncSpeechStream:
        """Speak ``text``. As AsyncSpeechClient.stream, but the request goes out at once."""

        async def start() -> ChunkStream[AudioChunk]:
            return await self._client.stream(text, **params).__aenter__()

        return SyncSpeechStream(self._run(start()), self._loop)

    def synthesize(self, text: str | bytes | SpeechRequest, **params: Any) -> Speech:
        """Speak ``text`` and wait for all of it."""
        return self._run(self._client.synthesize(text, **params))


class Transcriber(_SyncClient[AsyncTranscriber]):
    """Streams the text of recordings from a Voxstage server. All methods may be called from any thread.

    The parameters, the errors and the meaning of everything are those of AsyncTranscriber.

        with Transcriber() as client:
            for chunk in client.stream("meeting.mp3"):
                print(chunk.text, end="", flush=True)
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        model: str = "asr",
        chunk_timeout: float = 60.0,
        first_chunk_timeout: float = 60.0,
    ) -> None:
        super().__init__(
            AsyncTranscriber(url, model=model, chunk_timeout=chunk_timeout, first_chunk_timeout=first_chunk_timeout)
        )

    def stream(self, audio: Audio | TranscriptionRequest, **params: Any) -> SyncTranscriptStream:
        """Write down ``audio``. As AsyncTranscriber.stream, but the request goes out at once."""

        async def start() -> ChunkStream[TranscriptChunk]:
            return await self._client.stream(audio, **params).__aenter__()

        return SyncTranscriptStream(self._run(start()), self._loop)

    def transcribe(self, audio: Audio | TranscriptionRequest, **params: Any) -> Transcript:
        """Write down ``audio`` and wait for all of it."""
        return self._run(self._client.transcribe(audio, **params))


class SyncStream(Generic[C]):
    """An iterator of chunks. Cancelled on the server by ``close()``, ``with``, ``break`` and dropping it."""

    def __init__(self, stream: ChunkStream[C], loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._loop = loop

    @property
    def started_at(self) -> float:
        """time.monotonic() in seconds when the request went out."""
        return self._stream.started_at

    def __enter__(self: SelfStream) -> SelfStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[C]:
        return _Loop(self)

    def __next__(self) -> C:
        chunk = _wait(self._next(), self._loop)
        if chunk is None:
            raise StopIteration
        return chunk

    def cancel(self) -> None:
        """Cancel the request without waiting."""
        self._stream.cancel()

    def close(self) -> None:
        """Cancel the request and wait until the call is over."""
        _wait(self._stream.aclose(), self._loop)

    async def _next(self) -> C | None:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:  # a future cannot carry the end of an iteration
            return None


class SyncSpeechStream(SyncStream[AudioChunk]):
    """A SyncStream of AudioChunk."""


class SyncTranscriptStream(SyncStream[TranscriptChunk]):
    """A SyncStream of TranscriptChunk."""


class _Loop(Generic[C]):
    """What ``for`` holds, and nothing else does: its end is the end of the loop, by ``break`` or otherwise."""

    def __init__(self, stream: SyncStream[C]) -> None:
        self._stream = stream

    def __iter__(self) -> _Loop[C]:
        return self

    def __next__(self) -> C:
        try:
            return self._stream.__next__()
        except BaseException:  # Ctrl-C: the traceback keeps this frame, and so this object, alive
            self._stream.cancel()
            raise

    def __del__(self) -> None:
        self._stream.cancel()


_loop_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _shared_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all synchronous clients. One a process: grpc.aio polls for one loop at a time."""
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="speech-client", daemon=True).start()
        return _loop


def _wait(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C while waiting: leave no orphan that would take the next chunk
        raise


def _close(client: Connection, loop: asyncio.AbstractEventLoop) -> None:
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:  # the garbage collector ran in the loop's own thread: waiting for it here would wait for ever
        loop.create_task(client.aclose())
    else:
        _wait(client.aclose(), loop)
