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
from tests.server.texts import HOP, LONG, LONG_FRAMES, SHORT


def test_a_vocoder_that_breaks_in_mid_stream(start_server: StartServer) -> None:
    live = start_server("--set", "tts_vocoder.debug_fail_chunk=2")
    before = live.settled(FRAMES)
    with SpeechClient(live.url) as client:
        for _ in range(3):
            received = []
            with pytest.raises(StreamBroken) as caught:
                received.extend(client.stream(LONG, max_frames=LONG_FRAMES, chunk_frames=4))
            _no_chunk_lost_before_the_break(client, caught.value)
        # A text that ends before chunk 2 is not touched by the fault.
        assert client.synthesize(LONG, max_frames=8, chunk_frames=4).finish_reason == "length"
    live.wait_metric("voxstage_decoder_slots", 0)
    made = live.settled(FRAMES) - before - 8
    print(f"\n{made:g} frames for three streams that broke at frame 8")
    assert made < 3 * 40, "the decoder went on for a stream that had broken"
    status, events = generate(live.http, {"text": LONG, "max_frames": 60, "chunk_frames": 4, "format": "b64"})
    assert (status, [event["chunk_index"] for event in events]) == (200, [0, 1, 2])
    assert events[2]["finish_reason"] == "error"
    assert events[2]["final"] is True
    assert events[2]["error"] == "INTERNAL debug_fail_chunk is 2"
    live.wait_idle()
    assert live.settled("voxstage_vocoder_failed") == 4
    live.end()


def _no_chunk_lost_before_the_break(client: SpeechClient, error: StreamBroken) -> None:
    """The chunks before the break are handed out, and the exception says what happened."""
    assert error.code == "INTERNAL"
    assert error.detail == "debug_fail_chunk is 2"
    assert str(error).startswith("The stream broke after 2 chunks: debug_fail_chunk is 2.")
    good = []
    stream = client.stream(LONG, max_frames=LONG_FRAMES, chunk_frames=4)
    with pytest.raises(StreamBroken):
        for chunk in stream:
            good.append((chunk.index, chunk.final, len(chunk.audio)))
    assert good == [(0, False, 4 * HOP), (1, False, 4 * HOP)]


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
    ends = asyncio.run(work())
    assert time.monotonic() - began < 25
    # Whichever comes first: the deadline between chunks, an error of Triton's, or the end of the whole server.
    for end in ends:
        assert isinstance(end, StreamBroken | StreamTimeout | ServerError | ConnectionFailed), repr(end)
    assert live.serve.wait_ended(20) == 1
    last = live.serve.err.strip().splitlines()[-1]
    assert last == f"serve.py: the process of the stage {stage} died; the server was stopped"
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
    results = asyncio.run(_at_once(live, 12, SHORT, seed=1, temperature=0.8))
    good = [result for result, _ in results if isinstance(result, Speech)]
    refused = [(result, seconds) for result, seconds in results if isinstance(result, Unavailable)]
    assert len(good) + len(refused) == 12, [result for result, _ in results]
    assert len(good) >= 4
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
    results = asyncio.run(_at_once(live, 12, SHORT, **fields))
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

    asyncio.run(leave())
    live.wait_idle(20)
    with SpeechClient(live.url) as client:
        assert np.array_equal(client.synthesize(SHORT, **fields).audio, expected.audio)
    live.end()
