"""Streams: whole, in order, early, and the same over gRPC and HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
import shutil
import subprocess
import time
from typing import Any

import numpy as np
import pytest

from client import AsyncSpeechClient, AudioChunk, SpeechClient
from client.chunk import as_int16
from tests.server.events import decode_b64, generate
from tests.server.live import FRAMES, LiveServer
from tests.server.loop import run_async
from tests.server.texts import HOP, LONG, RATE, SHORT

STREAMS = 32


def check_whole(chunks: list[AudioChunk]) -> None:
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].finish_reason in ("stop", "length")
    assert {chunk.sample_rate for chunk in chunks} == {RATE}
    assert {chunk.channels for chunk in chunks} == {1}
    assert all(len(chunk.audio) % HOP == 0 for chunk in chunks)
    assert all(len(chunk.audio) > 0 for chunk in chunks[:-1])


def test_32_streams_at_once_are_whole(server: LiveServer, sentences: list[str]) -> None:
    async def one(client: AsyncSpeechClient, number: int) -> list[AudioChunk]:
        return [chunk async for chunk in client.stream(sentences[number], seed=number, max_frames=30 + number)]

    async def all_at_once() -> list[list[AudioChunk]]:
        async with AsyncSpeechClient(server.url, chunk_timeout=60) as client:
            return await asyncio.gather(*(one(client, number) for number in range(STREAMS)))

    before = server.settled(FRAMES)
    streams = run_async(all_at_once())
    for chunks in streams:
        check_whole(chunks)
    frames = sum(len(chunk.audio) for chunks in streams for chunk in chunks) // HOP
    server.wait_idle()
    assert server.settled(FRAMES) - before == frames, "not every frame was made once and spoken once"


def test_the_first_chunk_arrives_while_the_decoder_still_works(server: LiveServer, client: SpeechClient) -> None:
    before = server.settled(FRAMES)
    with client.stream(LONG, max_frames=100) as stream:
        chunks = [next(stream)]
        at_first_chunk = server.metric(FRAMES) - before
        chunks.extend(stream)
    check_whole(chunks)
    total = sum(len(chunk.audio) for chunk in chunks) // HOP
    assert server.settled(FRAMES) - before == total
    # The metrics lag by up to 0.1 s; had the decoder been done at the first chunk, the last would have come with it.
    assert at_first_chunk < total / 2
    assert chunks[-1].received_at - chunks[0].received_at > 0.3


def test_20_streams_one_by_one_are_cut_alike(client: SpeechClient) -> None:
    runs = [list(client.stream(SHORT, seed=4, temperature=0.8, max_frames=20)) for _ in range(20)]
    lengths = {tuple(len(chunk.audio) for chunk in chunks) for chunks in runs}
    assert len(lengths) == 1, lengths
    assert len({b"".join(chunk.audio.tobytes() for chunk in chunks) for chunks in runs}) == 1
    assert len(runs[0]) > 2


def test_chunks_grow_from_a_small_first_one(client: SpeechClient) -> None:
    sizes = [len(chunk.audio) // HOP for chunk in client.stream(LONG, max_frames=90)]
    assert sizes[0] == 4
    assert sizes[:-1] == sorted(sizes[:-1])
    assert max(sizes) <= 25


@pytest.mark.parametrize(("first", "largest", "expected"), [(1, 1, [1] * 6), (2, 2, [2, 2, 2]), (6, 6, [6])])
def test_a_request_chooses_its_chunks(client: SpeechClient, first: int, largest: int, expected: list[int]) -> None:
    stream = client.stream(SHORT, max_frames=6, first_chunk_frames=first, chunk_frames=largest)
    assert [len(chunk.audio) // HOP for chunk in stream] == expected


def test_finish_reasons(client: SpeechClient) -> None:
    stopped = client.synthesize("Good morning.")
    assert stopped.finish_reason == "stop"
    frames = len(stopped.audio) // HOP
    cut = client.synthesize("Good morning.", max_frames=frames - 1)
    assert (cut.finish_reason, len(cut.audio)) == ("length", (frames - 1) * HOP)
    assert np.array_equal(cut.audio, stopped.audio[: len(cut.audio)])


def test_generate_stream_says_the_same(server: LiveServer, client: SpeechClient) -> None:
    fields: dict[str, Any] = {"seed": 9, "temperature": 0.8, "max_frames": 25}
    expected = list(client.stream(SHORT, **fields))
    status, events = generate(server.http, {"text": SHORT, "format": "b64", **fields})
    assert status == 200
    assert [event["chunk_index"] for event in events] == list(range(len(expected)))
    assert [event["final"] for event in events] == [chunk.final for chunk in expected]
    assert [event["finish_reason"] for event in events] == [chunk.finish_reason for chunk in expected]
    assert {(event["sample_rate"], event["channels"], event["error"]) for event in events} == {(RATE, 1, "")}
    for event, chunk in zip(events, expected, strict=True):
        assert np.array_equal(decode_b64(event), as_int16(chunk.audio))
    assert server.settled("voxstage_vocoder_step_shapes") >= len(events), "a counter with labels is not exported"


def test_generate_stream_gives_numbers_too(server: LiveServer, client: SpeechClient) -> None:
    expected = client.synthesize("Hi.", max_frames=3).audio
    _, floats = generate(server.http, {"text": "Hi.", "max_frames": 3})
    heard = np.concatenate([np.asarray(event["audio"], dtype=np.float32) for event in floats])
    assert np.array_equal(heard, expected)
    _, integers = generate(server.http, {"text": "Hi.", "max_frames": 3, "format": "s16"})
    assert np.array_equal(np.concatenate([event["audio"] for event in integers]), as_int16(expected))


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_one_liner_of_the_readme(server: LiveServer, client: SpeechClient) -> None:
    """``curl | sed | base64`` makes raw 16-bit samples, which ``aplay -f S16_LE -r 24000`` or ffplay plays.

    Each event is a base64 text of its own, with padding, so each line is decoded by itself.
    """
    body = shlex.quote(json.dumps({"text": SHORT, "format": "b64"}))
    line = (
        f"curl -sN {server.base}/v2/models/tts/generate_stream -d {body} | "
        """sed -un 's/.*"audio":"\\([^"]*\\)".*/\\1/p' | while read -r chunk; do echo "$chunk" | base64 -d; done"""
    )
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert np.array_equal(np.frombuffer(done.stdout, "<i2"), as_int16(client.synthesize(SHORT).audio))


def test_a_slow_reader_loses_nothing(client: SpeechClient) -> None:
    expected = client.synthesize(SHORT).audio
    read = io.BytesIO()
    for chunk in client.stream(SHORT):
        time.sleep(0.3)
        read.write(chunk.audio.tobytes())
    assert read.getvalue() == expected.tobytes()
