"""The client against the real server: streams, cancels, errors, the command line.

``server`` (conftest.py) is the session's Triton. What Triton refuses by itself is in test_bad_input.py.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import (
    AsyncSpeechClient,
    Cancelled,
    ClientClosed,
    InvalidArgument,
    SpeechClient,
    SpeechError,
    SpeechStream,
    StreamTimeout,
)

ROOT = Path(__file__).resolve().parents[2]
TEXT = "The old bridge was closed for repairs."
# Streams long enough to be cancelled in the middle: several sentences, a frame a chunk.
LONG_TEXT = " ".join([TEXT, "The meeting is on Monday at nine thirty.", "Please leave a message after the tone."] * 2)
LONG: dict[str, Any] = {"first_chunk_frames": 1, "chunk_frames": 1}
LONG_OPTIONS = ("--first-chunk-frames", "1", "--chunk-frames", "1")


@pytest.fixture(scope="session")
def url(server: Any) -> str:
    return str(server.url)


def run(url: str, work: Callable[[AsyncSpeechClient], Awaitable[Any]], **options: Any) -> Any:
    async def with_client() -> Any:
        async with AsyncSpeechClient(url, **options) as client:
            return await work(client)

    return asyncio.run(with_client())


async def to_the_end(stream: SpeechStream) -> None:
    while True:
        await anext(stream)


def command(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "client", arguments[0], "--url", url, *arguments[1:]]


def test_a_stream_is_whole(url: str) -> None:
    async def work(client: AsyncSpeechClient) -> None:
        chunks = [chunk async for chunk in client.stream(TEXT)]
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert [chunk.finish_reason for chunk in chunks] == [""] * (len(chunks) - 1) + ["stop"]
        assert {chunk.sample_rate for chunk in chunks} == {24000}
        assert {str(chunk.audio.dtype) for chunk in chunks} == {"float32"}
        assert len(chunks) > 1
        assert sum(len(chunk.audio) for chunk in chunks) % 1920 == 0

    run(url, work)


def test_formats_and_both_clients_give_the_same_audio(url: str) -> None:
    async def work(client: AsyncSpeechClient) -> tuple[np.ndarray, np.ndarray]:
        return (await client.synthesize(TEXT)).audio, (await client.synthesize(TEXT, format="s16")).audio

    floats, integers = run(url, work)
    assert (floats.dtype, integers.dtype) == (np.float32, np.int16)
    assert len(floats) == len(integers)
    assert np.abs(floats - integers / 32768.0).max() < 2e-4
    with SpeechClient(url) as client:
        assert np.array_equal(client.synthesize(TEXT).audio, floats)


def test_length_is_said_when_the_frames_run_out(url: str) -> None:
    with SpeechClient(url) as client:
        speech = client.synthesize(TEXT, max_frames=5)
    assert speech.finish_reason == "length"
    assert len(speech.audio) == 5 * 1920


@pytest.mark.parametrize(
    ("text", "params", "field"),
    [
        ("", {}, "text"),
        (b"\xc3\x28", {}, "text"),
        ("Hi.", {"seed": -1}, "seed"),
        ("Hi.", {"temperature": float("nan")}, "temperature"),
        ("Hi.", {"top_p": 0.0}, "top_p"),
        ("Hi.", {"max_frames": 0}, "max_frames"),
        ("Hi.", {"extra": {"format": "mp3"}}, "format"),
        ("Hi.", {"extra": {"seed": np.zeros(2, np.int64)}}, "seed"),
        ("Hi.", {"extra": {"text": None}}, "text"),
    ],
)
def test_bad_input_is_typed_and_the_next_request_works(
    url: str, text: str | bytes, params: dict[str, Any], field: str
) -> None:
    with SpeechClient(url) as client:
        started = time.monotonic()
        with pytest.raises(InvalidArgument) as caught:
            client.synthesize(text, **params)
        assert time.monotonic() - started < 5
        assert caught.value.field == field
        assert client.synthesize("Hi.", max_frames=1).timings.audio_s > 0


def test_cancelling_half_of_32_streams_leaves_the_others_whole(url: str) -> None:
    async def work(client: AsyncSpeechClient) -> None:
        expected = await client.synthesize(TEXT, seed=1)

        async def cut() -> int:
            count = 0
            async for _ in client.stream(LONG_TEXT, **LONG):
                count += 1
                if count == 2:
                    break
            return count

        async def whole() -> np.ndarray:
            return (await client.synthesize(TEXT, seed=1)).audio

        results = await asyncio.gather(*((cut if i % 2 else whole)() for i in range(32)))
        assert results[1::2] == [2] * 16
        for audio in results[::2]:
            assert np.array_equal(np.asarray(audio), expected.audio)

    run(url, work)


def test_every_way_of_leaving_ends_the_stream(url: str) -> None:
    async def work(client: AsyncSpeechClient) -> None:
        held = client.stream(LONG_TEXT, **LONG)
        async for _ in held:
            break
        with pytest.raises(Cancelled):
            await to_the_end(held)

        closed = client.stream(LONG_TEXT, **LONG)
        await anext(closed)
        await closed.aclose()
        with pytest.raises(Cancelled):
            await to_the_end(closed)

        async def consume() -> None:
            async for _ in client.stream(LONG_TEXT, **LONG):
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.health()).ok

    run(url, work)


def test_deadline(url: str) -> None:
    async def work(client: AsyncSpeechClient) -> None:
        with pytest.raises(StreamTimeout, match=r"No first chunk came within 0\.001 s"):
            await client.synthesize(TEXT)

    run(url, work, first_chunk_timeout=0.001)


def test_closing_a_sync_client_wakes_every_thread(url: str) -> None:
    client = SpeechClient(url)
    ends: list[SpeechError | None] = []

    def consume() -> None:
        try:
            for _ in client.stream(LONG_TEXT, **LONG):
                pass
            ends.append(None)
        except SpeechError as error:
            ends.append(error)

    threads = [threading.Thread(target=consume) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    client.close()
    for thread in threads:
        thread.join(5)
    assert len(ends) == 8
    assert {type(end) for end in ends} <= {Cancelled, ClientClosed}, ends
    with pytest.raises(ClientClosed):
        client.synthesize(TEXT)


def test_health(url: str) -> None:
    with SpeechClient(url) as client:
        health = client.health()
    assert health.ok, health.problem
    assert health.latency_s is not None
    assert {"tts", "tts_prompt", "tts_decoder", "tts_vocoder"} <= set(health.models)
    with SpeechClient(url, model="nope") as client:
        assert "no model 'nope'" in client.health().problem


def test_health_command(url: str) -> None:
    done = subprocess.run(command(url, "health", "--json"), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True


def test_speak_writes_a_wav_and_says_what_it_measured(url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    arguments = ("speak", "-", "-o", str(path), "--seed", "1")
    done = subprocess.run(command(url, *arguments), cwd=ROOT, input=TEXT.encode(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    for said in (b"chunk 0:", b"first chunk", b"real-time factor", b"playback underrun", b"Wrote"):
        assert said in done.stderr
    with SpeechClient(url) as client, wave.open(str(path)) as file:
        assert file.getframerate() == 24000
        expected = client.synthesize(TEXT, seed=1, format="s16").audio
        assert np.array_equal(np.frombuffer(file.readframes(file.getnframes()), "<i2"), expected)


def test_speak_writes_raw_pcm_where_the_name_says_so(url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pcm"
    arguments = ("speak", TEXT, "-o", str(path), "--seed", "1")
    done = subprocess.run(command(url, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"Raw PCM in {path}: 16-bit little-endian, mono, 24000 samples" in done.stderr
    with SpeechClient(url) as client:
        expected = client.synthesize(TEXT, seed=1, format="s16").audio
    assert np.array_equal(np.frombuffer(path.read_bytes(), "<i2"), expected)


def test_speak_refused_by_the_server_exits_2(url: str, tmp_path: Path) -> None:
    arguments = ("speak", "...", "-o", str(tmp_path / "a.wav"))
    done = subprocess.run(command(url, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("The value of text is not valid: '...' holds no letter")
    assert not (tmp_path / "a.wav").exists()


def test_speak_without_a_sound_exits_1_and_leaves_the_file(url: str, tmp_path: Path) -> None:
    """The demo voice takes some texts as said already when it goes on from this clip. Which ones is the model's matter:
    the first that it does is asked for."""
    clip = {
        "reference_audio": ROOT / "voices" / "rms.flac",
        "reference_text": "A small boat came slowly down the river.",
    }
    with SpeechClient(url) as client:
        texts = ("Good morning.", "The ship sails at noon.", "Good night.", "Thank you.")
        silent = [text for text in texts if not len(client.synthesize(text, **clip).audio)]
    if not silent:
        pytest.skip("on this machine the voice speaks all of these texts")
    path = tmp_path / "a.wav"
    path.write_bytes(b"older")
    arguments = ["speak", silent[0], "-o", str(path), "--voice", str(clip["reference_audio"])]
    arguments += ["--voice-text", str(clip["reference_text"])]
    done = subprocess.run(command(url, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert "The voice ended without a sound." in done.stderr and "Wrote" not in done.stderr
    assert path.read_bytes() == b"older"


def test_raw_pcm_into_a_reader_that_leaves(url: str) -> None:
    process = subprocess.Popen(
        command(url, "speak", LONG_TEXT, "-o", "-", *LONG_OPTIONS),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert len(process.stdout.read(1000)) == 1000
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert process.wait(30) == 0
    assert "Traceback" not in errors
    assert "Broken" not in errors
    with SpeechClient(url) as client:
        assert client.health().ok


def test_ctrl_c_exits_130_and_leaves_a_valid_file(url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    process = subprocess.Popen(
        command(url, "speak", LONG_TEXT, "-o", str(path), *LONG_OPTIONS),
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"chunk 0")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert b"Interrupted" in process.stderr.read()
    with wave.open(io.BytesIO(path.read_bytes())) as file:
        assert file.getnframes() > 0
