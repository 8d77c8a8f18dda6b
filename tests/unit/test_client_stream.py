"""A stream that is closed at the very moment a chunk arrives. No server can be made to do that; a scripted call can."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from client.errors import Cancelled
from client.stream import ChunkStream, Deadlines, Source

CHUNKS = 4


@dataclass(frozen=True)
class Bit:
    """What a chunk has to have."""

    index: int
    final: bool
    finish_reason: str = ""
    received_at: float = 0.0


class Call:
    """Answers at once; closes its stream while it answers with chunk ``closes``."""

    def __init__(self, closes: int) -> None:
        self.stream: ChunkStream[Any] | None = None
        self._closes, self._at = closes, -1

    async def __anext__(self) -> tuple[int, None]:
        self._at += 1
        if self._at == CHUNKS:
            raise StopAsyncIteration
        if self._at == self._closes:
            assert self.stream is not None
            self.stream.cancel()
        return self._at, None

    def cancel(self) -> None:
        pass


def read(closes: int) -> int:
    """Chunks of a stream that is closed with chunk ``closes``; -1: never."""

    async def consume() -> int:
        call, count = Call(closes), 0
        stream: ChunkStream[Any] = ChunkStream(
            Source(lambda: call, lambda at, _: (Bit(at, at == CHUNKS - 1), ""), Deadlines(10.0, 10.0), "here", "audio")
        )
        call.stream = stream
        async for _ in stream:
            count += 1
        return count

    return asyncio.run(consume())


def test_a_stream_that_nobody_closes_has_every_chunk() -> None:
    assert read(-1) == CHUNKS


@pytest.mark.parametrize("closes", range(CHUNKS))
def test_closing_is_never_lost(closes: int) -> None:
    with pytest.raises(Cancelled):
        read(closes)
