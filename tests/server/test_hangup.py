"""Clients that go: the decoder stops, everything is given back, the others and the server's end are not disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from client import AsyncSpeechClient, Cancelled, SpeechClient
from tests.server.conftest import StartServer
from tests.server.direct import DirectStream, prompt_rows
from tests.server.events import EventStream
from tests.server.live import FRAMES, LiveServer
from tests.server.loop import run_async
from tests.server.texts import HOP, LONG, LONG_FRAMES, SHORT

CANCELLED = "voxstage_decoder_cancelled"
FINISHED = "voxstage_decoder_finished"
ABORTS = 200
CONCURRENCY = 16


def frames_after_hangup(server: LiveServer, before: float, received: int) -> float:
    """Frames that the decoder made beyond those received, once it has stopped; fails unless it stopped soon."""
    server.wait_metric("voxstage_decoder_slots", 0, seconds=5)
    made = server.settled(FRAMES) - before
    time.sleep(0.5)
    assert server.metric(FRAMES) - before == made, "the decoder goes on without a client"
    return made - received


def test_the_long_text_is_long(client: SpeechClient) -> None:
    """What the tests below cut off would have gone on to 30 s of audio."""
    speech = client.synthesize(LONG, max_frames=LONG_FRAMES)
    assert (speech.seconds, speech.finish_reason) == (30.0, "length")


@pytest.mark.parametrize(("first", "largest", "received"), [(4, 4, 4), (4, 25, 4), (1, 1, 1)])
def test_the_decoder_stops_within_two_chunks(
    server: LiveServer, client: SpeechClient, first: int, largest: int, received: int
) -> None:
    before, cancelled = server.settled(FRAMES), server.metric(CANCELLED)
    with client.stream(LONG, max_frames=LONG_FRAMES, first_chunk_frames=first, chunk_frames=largest) as stream:
        assert len(next(stream).audio) == received * HOP
    # The vocoder sees the hang-up when the next chunk reaches it, and tells the decoder, which may be in the one after.
    # A margin of frames for a small chunk: the news takes some milliseconds, and a step takes as many.
    extra = frames_after_hangup(server, before, received)
    print(f"\n{extra:g} frames after the hang-up")
    assert extra <= 2 * largest + 8
    assert server.metric(CANCELLED) - cancelled == 1


def test_a_dropped_http_connection_stops_the_decoder(server: LiveServer) -> None:
    before, cancelled = server.settled(FRAMES), server.metric(CANCELLED)
    events = EventStream(server.http, {"text": LONG, "max_frames": LONG_FRAMES, "chunk_frames": 4, "format": "b64"})
    assert next(iter(events))["chunk_index"] == 0
    events.drop()
    assert frames_after_hangup(server, before, 4) <= 4 * 4 + 8
    assert server.metric(CANCELLED) - cancelled == 1


def test_a_hangup_in_the_queue_gives_its_place_back(server: LiveServer) -> None:
    """More requests than slots: those that wait are cancelled before their first frame."""

    async def work() -> None:
        async with AsyncSpeechClient(server.url) as client:
            streams = [client.stream(SHORT, chunk_frames=4) for _ in range(24)]
            await asyncio.gather(*(stream.__aenter__() for stream in streams))
            await asyncio.to_thread(server.wait_metric, "voxstage_decoder_waiting", lambda value: value > 0, 10)
            await asyncio.gather(*(stream.aclose() for stream in streams))

    run_async(work())
    server.wait_idle(20)


def test_a_hangup_does_not_disturb_the_others(server: LiveServer, client: SpeechClient) -> None:
    expected = client.synthesize(SHORT, seed=2, temperature=0.8).audio

    async def work() -> list[np.ndarray]:
        async with AsyncSpeechClient(server.url) as speech:

            async def leave() -> None:
                async with speech.stream(LONG, max_frames=LONG_FRAMES, chunk_frames=4) as stream:
                    await anext(stream)

            async def stay() -> np.ndarray:
                return (await speech.synthesize(SHORT, seed=2, temperature=0.8)).audio

            results = await asyncio.gather(*((leave if number % 2 else stay)() for number in range(12)))
            return [result for result in results if result is not None]

    heard = run_async(work())
    assert len(heard) == 6
    assert all(np.array_equal(audio, expected) for audio in heard)


def test_200_random_aborts(start_server: StartServer) -> None:
    """Before the first chunk, after one to three, by closing the client, by dropping an HTTP connection; 16 at once."""
    live = start_server()
    with SpeechClient(live.url) as speech:
        expected = speech.synthesize(SHORT, seed=6, temperature=0.8).audio
    assert run_async(_abort(live)) == ABORTS
    live.wait_idle(20)
    frames = live.settled(FRAMES)
    time.sleep(0.5)
    assert live.metric(FRAMES) == frames, "the decoder works for nobody"
    values = live.scrape()
    # What was accepted was cancelled or came to its end before it could be; nothing else may have happened.
    accepted = values["voxstage_decoder_requests"]
    print(f"\n{accepted:g} accepted, {values[CANCELLED]:g} cancelled, {values[FINISHED]:g} finished, {frames:g} frames")
    assert values[CANCELLED] + values[FINISHED] == accepted
    assert values["voxstage_decoder_failed"] == values["voxstage_vocoder_failed"] == 0
    assert values["voxstage_vocoder_idle"] == 0
    with SpeechClient(live.url) as speech:
        assert np.array_equal(speech.synthesize(SHORT, seed=6, temperature=0.8).audio, expected)
    live.end()


async def _abort(live: LiveServer) -> int:
    """Starts and aborts ABORTS requests; returns how many."""
    chance, turn = random.Random(20), asyncio.Semaphore(CONCURRENCY)  # seeded, so that a failure repeats
    # A short prompt: what is aborted before its first chunk has to be read in all the same, because a hang-up shows
    # to the vocoder only.
    text = SHORT
    fields: dict[str, Any] = {"first_chunk_frames": 1, "chunk_frames": 2}

    async def after_chunks(client: AsyncSpeechClient, chunks: int) -> None:
        async with client.stream(text, **fields) as stream:
            for _ in range(chunks):
                await anext(stream)

    async def before_first_chunk(client: AsyncSpeechClient, seconds: float) -> None:
        async with client.stream(text, **fields):
            await asyncio.sleep(seconds)

    async def close_client(seconds: float) -> None:
        client = AsyncSpeechClient(live.url)
        stream = client.stream(text, **fields)
        await stream.__aenter__()
        await asyncio.sleep(seconds)
        await client.aclose()
        with contextlib.suppress(Cancelled):  # or it had ended by itself just before
            async for _ in stream:
                pass

    def drop_http(events_wanted: int) -> None:
        stream = EventStream(live.http, {"text": text, "format": "b64", **fields})
        if events_wanted:
            events = iter(stream)
            for _ in range(events_wanted):
                next(events)
        else:
            time.sleep(0.05)
        stream.drop()

    async def one(client: AsyncSpeechClient, kind: int, delay: float, chunks: int) -> int:
        async with turn:
            if kind == 0:
                await before_first_chunk(client, delay)
            elif kind == 1:
                await after_chunks(client, chunks)
            elif kind == 2:
                await close_client(delay)
            else:
                await asyncio.to_thread(drop_http, chunks - 1)
            return 1

    async with AsyncSpeechClient(live.url) as client:
        plan = [(chance.randrange(4), chance.uniform(0, 0.4), chance.randint(1, 3)) for _ in range(ABORTS)]
        return sum(await asyncio.gather(*(one(client, *step) for step in plan)))


def test_a_direct_stream_is_cancelled_too(server: LiveServer) -> None:
    before, cancelled = server.settled(FRAMES), server.metric(CANCELLED)
    limits = {"max_frames": np.array([LONG_FRAMES], np.int32), "chunk_frames": np.array([4], np.int32)}
    with DirectStream(server.url, "tts_decoder", rows=prompt_rows(LONG), **limits) as stream:
        outputs = stream.next()
        assert outputs is not None
        assert outputs["codes"].shape == (4, 12)
    assert frames_after_hangup(server, before, 4) <= 2 * 4 + 8
    assert server.metric(CANCELLED) - cancelled == 1


def test_a_cancel_message_ends_a_direct_stream(server: LiveServer) -> None:
    before = server.settled(FRAMES)
    limits = {"max_frames": np.array([LONG_FRAMES], np.int32), "chunk_frames": np.array([4], np.int32)}
    with DirectStream(server.url, "tts_decoder", rows=prompt_rows(LONG), **limits) as stream:
        outputs = stream.next()
        assert outputs is not None
        with DirectStream(server.url, "tts_decoder", cancel=outputs["stream_id"]) as cancel:
            assert cancel.rest() == []
        rest = stream.rest()
        assert all(not bool(one["final"][0]) for one in rest), "a cancelled stream has no last chunk"
    received = len(outputs["codes"]) + sum(len(one["codes"]) for one in rest)
    assert received < LONG_FRAMES
    assert frames_after_hangup(server, before, received) < 8


def test_a_cancel_message_for_nobody_does_nothing(server: LiveServer, client: SpeechClient) -> None:
    for stream_id in (0, 1, 2**63 - 1):
        with DirectStream(server.url, "tts_decoder", cancel=np.array([stream_id], np.int64)) as cancel:
            assert cancel.rest() == []
    assert client.synthesize("Hi.", max_frames=1).finish_reason == "length"


def test_a_direct_stream_gives_the_golden_codes(server: LiveServer, golden: Any) -> None:
    """The codes that a client of the decoder gets are those of the public implementation."""
    from safetensors.numpy import load_file

    wanted = load_file(golden / "greedy_4.safetensors")
    with DirectStream(server.url, "tts_decoder", rows=wanted["prompt_rows"].astype(np.int32)) as stream:
        answers = stream.rest()
    assert [int(answer["chunk_index"][0]) for answer in answers] == list(range(len(answers)))
    assert [bool(answer["final"][0]) for answer in answers] == [False] * (len(answers) - 1) + [True]
    assert np.array_equal(np.concatenate([answer["codes"] for answer in answers]), wanted["codes"])


ROWS = np.full((4, 13), 1024, np.int32)
ROWS[:, 0] = (39, 72, 13, 259)


def rows_with(row: int, column: int, value: int) -> np.ndarray:
    rows = ROWS.copy()
    rows[row, column] = value
    return rows


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "rows: is missing"),
        ({"rows": ROWS[:, :12].copy()}, "rows: has shape [4, 12], expected [P, 13]"),
        ({"rows": ROWS[:0].copy()}, "rows: has shape [0, 13]"),
        ({"rows": rows_with(0, 0, 288)}, "rows: text id 288 is outside 0...287"),
        ({"rows": rows_with(0, 0, -1)}, "rows: text id -1 is outside 0...287"),
        ({"rows": rows_with(3, 12, 1025)}, "rows: code 1025 is outside 0...1024"),
        ({"rows": rows_with(2, 1, -7)}, "rows: code -7 is outside 0...1024"),
        ({"rows": np.repeat(ROWS, 256, axis=0)}, "rows: 1024 rows leave no room in 1024 positions"),
        ({"rows": ROWS, "max_frames": np.array([1021], np.int32)}, "max_frames: 1021 is above 1020"),
        ({"rows": ROWS, "max_frames": np.array([0], np.int32)}, "max_frames: 0 is below 1"),
        ({"rows": ROWS, "seed": np.array([-1], np.int64)}, "seed: -1 is below 0"),
        ({"rows": ROWS, "temperature": np.array([np.nan], np.float32)}, "temperature: nan is not a finite number"),
        ({"rows": ROWS, "top_p": np.array([0, 1], np.float32)}, "top_p: has shape [2], expected [1]"),
        ({"rows": ROWS, "chunk_frames": np.array([-1], np.int32)}, "chunk_frames: -1 is below 0"),
        ({"cancel": np.array([-1], np.int64)}, "cancel: -1 is below 0"),
    ],
)
def test_bad_rows_are_refused(server: LiveServer, inputs: dict[str, np.ndarray], words: str) -> None:
    with (
        DirectStream(server.url, "tts_decoder", **inputs) as stream,
        pytest.raises(InferenceServerException) as caught,
    ):
        stream.rest()
    message = str(caught.value.message())
    assert message.startswith("INVALID_ARG ")
    assert words in message
    with DirectStream(server.url, "tts_decoder", rows=ROWS, max_frames=np.array([1], np.int32)) as stream:
        assert len(stream.rest()) == 1
