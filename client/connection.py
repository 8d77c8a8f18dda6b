"""What the asyncio clients share: one gRPC channel to one model, made late and closed once."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from client.errors import ClientClosed, InvalidArgument, ServerError
from client.health import Health, check, model_states
from client.stream import C, ChunkStream, Deadlines, Source, no_server

MAX_MESSAGE_BYTES = 2**31 - 1
Self = TypeVar("Self", bound="Connection")


class Connection(ABC):
    """A model of a Voxstage server over one gRPC channel. Belongs to one event loop.

    url                  host and gRPC port
    model                name of the ensemble
    chunk_timeout        seconds to wait for every chunk after the first
    first_chunk_timeout  seconds to wait for the first chunk, waiting in the server's queue included
    outputs              names of the outputs to ask for; None: all that the model has

    Streams are independent: each has a gRPC call of its own, and ending one leaves the others alone.
    """

    #: What the model does, as the word that a health report uses.
    task: str

    def __init__(
        self,
        url: str,
        *,
        model: str,
        chunk_timeout: float,
        first_chunk_timeout: float,
        outputs: Sequence[str] | None = None,
    ) -> None:
        for name, seconds in (("chunk_timeout", chunk_timeout), ("first_chunk_timeout", first_chunk_timeout)):
            if not seconds > 0:
                raise InvalidArgument(f"{seconds} is not a time to wait; give seconds above 0", field=name)
        if "://" in url:
            raise InvalidArgument(f"{url!r} has a scheme; give host:port of the gRPC port", field="url")
        self.url = url
        self.model = model
        self.outputs = None if outputs is None else tuple(outputs)
        self.deadlines = Deadlines(first_chunk_timeout, chunk_timeout)
        self._triton: InferenceServerClient | None = None
        self._streams: weakref.WeakSet[ChunkStream[Any]] = weakref.WeakSet()
        self._closed = False

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel every stream, then close the channel. May be called more than once."""
        self._closed = True
        await asyncio.gather(*(stream.aclose() for stream in list(self._streams)))
        triton, self._triton = self._triton, None
        if triton is not None:
            await triton.close()

    async def health(self) -> Health:
        """Ask the server and run a canary. Never raises for a server that is ill: the answer says what is wrong."""
        return await check(self, self._connect())

    @abstractmethod
    async def canary(self) -> float:
        """Let the model do a little of its work. Returns the seconds until its first answer; errors as in streams."""

    async def metadata(self) -> dict[str, Any]:
        """What Triton says of itself (``server``) and of the model (``model``): names, versions, inputs, outputs.

        Raises ConnectionFailed when no server answers, ServerError when it refuses the question.
        """
        triton, seconds = self._connect(), self.deadlines.chunk
        with self._asking():
            server = await triton.get_server_metadata(as_json=True, client_timeout=seconds)
            model = await triton.get_model_metadata(self.model, as_json=True, client_timeout=seconds)
        return {"server": server, "model": model}

    async def models(self) -> dict[str, str]:
        """State by name of all models of the server, as in Health. Errors as in ``metadata``."""
        triton = self._connect()
        with self._asking():
            return await model_states(triton, self.deadlines.chunk)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Typed errors for a question that is no request."""
        try:
            yield
        except InferenceServerException as error:
            if str(error.status()) in ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED"):
                raise no_server(self.url, str(error.message())) from None
            raise ServerError(f"The server at {self.url} did not say what it has ({error.message()})") from None

    def _source(self, inputs: list[InferInput], read: Callable[[Any, float], tuple[C, str]], cargo: str) -> Source[C]:
        return Source(lambda: self._open(inputs), read, self.deadlines, self.url, cargo)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("This client was closed; make a new one")

    def _connect(self) -> InferenceServerClient:
        """The Triton client. Made late: a grpc.aio channel belongs to the loop that runs when it is made."""
        self._check_open()
        if self._triton is None:
            self._triton = InferenceServerClient(self.url, channel_args=_channel_args(self.url))
        return self._triton

    def _open(self, inputs: list[InferInput]) -> Any:
        request: dict[str, Any] = {"model_name": self.model, "inputs": inputs}
        if self.outputs is not None:
            request["outputs"] = [InferRequestedOutput(name) for name in self.outputs]
        return self._connect().stream_infer(_one_request(request))


async def _one_request(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    # One request, then the sending half of the call closes. The server ends the call when that request is done,
    # which is how a stream without a last chunk shows (the asyncio stream_infer has no enable_empty_final_response).
    yield request


def _channel_args(url: str) -> list[tuple[str, int]]:
    args = [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # A server that restarts is found again within a second, not after gRPC's usual two minutes.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    host = url.rpartition(":")[0].strip("[]")
    if host in ("localhost", "::1") or host.startswith("127."):
        args.append(("grpc.enable_http_proxy", 0))  # a proxy cannot reach our own loopback
    return args
