"""Stages that break, die or are full: every client learns it, nothing is left inside, the server ends or goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from client import (
    AsyncSpeechClient,
    ConnectionFailed,
    ServerError,
    Speech,
    SpeechClient,
    SpeechError,
    StreamBroken,
    StreamTimeout,
    Unavailable,
)
from tests.server.conftest import StartServer
from tests.server.dummies import leftovers
from tests.server.events import generate
from tests.server.live import FRAMES, LiveServer
from tests.server.loop import run_async
from tests.server.texts import HOP, LONG, LONG_FRAMES, SHORT


def test_a_vocoder_that_breaks_in_mid_stream(start_server: StartServer) -> None:
    """The chunks before the break are handed out; the exception says what happened; the decoder stops."""
    live = start_server("--set", "tts_vocoder.debug_fail_chunk=2")
    before = live.settled(FRAMES)
    with SpeechClient(live.url) as client:
        for _ in range(3):
            received, error = _read(client, LONG, max_frames=LONG_FRAMES, chunk_frames=4)
            assert received == [(0, False, 4 * HOP), (1, False, 4 * HOP)]
            assert isinstance(error, StreamBroken)
            assert (error.code, error.detail) == ("INTERNAL", "debug_fail_chunk is 2")
            assert str(error).startswith("The stream broke after 2 chunks: debug_fail_chunk is 2.")
        # A text that ends before chunk 2 is not touched by the fault.
        assert client.synthesize(LONG, max_frames=8, chunk_frames=4).finish_reason == "length"
    live.wait_metric("voxstage_decoder_slots", 0)
    made = live.settled(FRAMES) - before - 8
    print(f"\n{made:g} frames for three streams that broke at frame 12")
    assert made <= 3 * (12 + 2 * 4 + 8), "the decoder went on for a stream that had broken"
    status, events = generate(live.http, {"text": LONG, "max_frames": 60, "chunk_frames": 4, "format": "b64"})
    assert (status, [event["chunk_index"] for event in events]) == (200, [0, 1, 2])
    assert events[2]["finish_reason"] == "error"
    assert events[2]["final"] is True
    assert events[2]["error"] == "INTERNAL debug_fail_chunk is 2"
    live.wait_idle()
    assert live.settled("voxstage_vocoder_failed") == 4
    live.end()


def _read(client: SpeechClient, text: str, **fields: Any) -> tuple[list[tuple[int, bool, int]], SpeechError | None]:
    """(index, final, samples) of every chunk, and what the stream raised."""
    received: list[tuple[int, bool, int]] = []
    try:
        received.extend((chunk.index, chunk.final, len(chunk.audio)) for chunk in client.stream(text, **fields))
    except SpeechError as error:
        return received, error
    return received, None


@pytest.mark.parametrize("stage", ["tts_decoder", "tts_vocoder"])
def test_a_stage_killed_under_load(start_server: StartServer, stage: str) -> None:
    live = start_server()

    async def work() -> list[Any]:
        async with AsyncSpeechClient(live.url, chunk_timeout=5, first_chunk_timeout=5) as client:
            first_chunk = asyncio.Event()

            async def one() -> None:
                async for _ in client.stream(LONG, max_frames=LONG_FRAMES):
                    first_chunk.set()

            streams = [asyncio.create_task(one()) for _ in range(6)]
            await asyncio.wait_for(first_chunk.wait(), 30)
            os.kill(live.stages[stage], signal.SIGKILL)
            return await asyncio.gather(*streams, return_exceptions=True)

    began = time.monotonic()
    ends = run_async(work())
    assert time.monotonic() - began < 25
    # Whichever comes first: the deadline between chunks, an error of Triton's, or the end of the whole server.
    for end in ends:
        assert isinstance(end, StreamBroken | StreamTimeout | ServerError | ConnectionFailed), repr(end)
    assert live.serve.wait_ended(20) == 1
    last = live.serve.err.strip().splitlines()[-1]
    assert last.startswith(f"serve.py: the process of the stage {stage} was killed by SIGKILL, ")
    assert last.endswith("; the server was stopped, start it again")
    assert leftovers(live.state) == []


async def _at_once(live: LiveServer, count: int, text: str, **fields: Any) -> list[tuple[Speech | SpeechError, float]]:
    """What became of ``count`` equal requests sent together, and the seconds each took."""

    async def one(client: AsyncSpeechClient) -> tuple[Speech | SpeechError, float]:
        began = time.monotonic()
        try:
            speech: Speech | SpeechError = await client.synthesize(text, **fields)
        except SpeechError as error:
            speech = error
        return speech, time.monotonic() - began

    async with AsyncSpeechClient(live.url, chunk_timeout=60) as client:
        return await asyncio.gather(*(one(client) for _ in range(count)))


def test_a_full_server_says_so_at_once(start_server: StartServer) -> None:
    live = start_server("--set", "tts_decoder.max_running=2", "--set", "tts_decoder.max_waiting=2")
    with SpeechClient(live.url) as client:
        expected = client.synthesize(SHORT, seed=1, temperature=0.8)
    results = run_async(_at_once(live, 12, SHORT, seed=1, temperature=0.8))
    good = [result for result, _ in results if isinstance(result, Speech)]
    refused = [(result, seconds) for result, seconds in results if isinstance(result, Unavailable)]
    assert len(good) + len(refused) == 12, [result for result, _ in results]
    assert len(good) >= 4, "two run and two wait: that many have a place, however they come"
    assert refused
    assert all(np.array_equal(speech.audio, expected.audio) for speech in good)
    slowest = max(seconds for _, seconds in refused)
    print(f"\n{len(good)} served, {len(refused)} refused, the last after {1000 * slowest:.0f} ms")
    assert slowest < 0.5
    assert "max_running 2 and max_waiting 2 are both reached" in refused[0][0].detail
    live.wait_idle()
    assert live.settled("voxstage_decoder_shed") == len(refused)
    # Over HTTP the same word, and a place again as soon as there is room.
    assert generate(live.http, {"text": "Hi.", "max_frames": 1})[0] == 200
    live.end()


def test_more_streams_than_vocoder_slots(start_server: StartServer) -> None:
    """A stream without a slot waits for one, with all of its chunks, and loses nothing."""
    live = start_server("--set", "tts_vocoder.slots=2")
    fields: dict[str, Any] = {"max_frames": 20, "first_chunk_frames": 2, "chunk_frames": 3}
    with SpeechClient(live.url) as client:
        expected = client.synthesize(SHORT, **fields)
    results = run_async(_at_once(live, 12, SHORT, **fields))
    for result, _ in results:
        assert isinstance(result, Speech), result
        assert np.array_equal(result.audio, expected.audio)
    live.wait_idle()

    async def leave() -> None:
        """Streams that are cancelled while they wait for a slot do not come back to take one."""
        async with AsyncSpeechClient(live.url, chunk_timeout=60) as client:
            streams = [client.stream(LONG, max_frames=60, first_chunk_frames=1, chunk_frames=2) for _ in range(8)]
            await asyncio.gather(*(stream.__aenter__() for stream in streams))
            await anext(streams[0])
            await asyncio.sleep(0.3)
            await asyncio.gather(*(stream.aclose() for stream in streams))

    run_async(leave())
    live.wait_idle(20)
    with SpeechClient(live.url) as client:
        assert np.array_equal(client.synthesize(SHORT, **fields).audio, expected.audio)
    live.end()
