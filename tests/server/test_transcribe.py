"""The transcriber against a real server that has speech to text and nothing else: streams, errors, the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from client import AsyncTranscriber, Cancelled, InvalidArgument, SpeechClient, Transcriber
from client.__main__ import main
from tests.server.live import LiveServer

ROOT = Path(__file__).resolve().parents[2]
CLIPS = [ROOT / "voices" / name for name in ("slt.flac", "rms.flac")]
SAID = "A small boat came slowly down the river."


@pytest.fixture(scope="module")
def asr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of speech to text that keeps what it encoded: the tests say the same clips again and again. Its end is a
    test too."""
    live = LiveServer(tmp_path_factory.mktemp("asr"), "--pipelines", "asr", "--set", "asr_prompt.cache_mib=64")
    try:
        yield live
        live.end()
    finally:
        live.kill()


@pytest.fixture(autouse=True)
def _leaves_it_idle(asr: LiveServer) -> Iterator[None]:
    """No test may leave a transcription inside."""
    yield
    for name in ("voxstage_asr_inside", "voxstage_decoder_slots", "voxstage_decoder_waiting"):
        asr.wait_metric(name, 0, 10)


@pytest.fixture(scope="module")
def spoken() -> tuple[np.ndarray, int]:
    samples, rate = soundfile.read(CLIPS[0], dtype="int16")
    return samples, int(rate)


def command(asr: LiveServer, *arguments: str) -> int:
    """Run a command of the client in this process; capsys has what it printed."""
    return main([arguments[0], "--url", asr.url, *arguments[1:]])


def test_file_bytes_and_samples_say_the_same(asr: LiveServer, spoken: tuple[np.ndarray, int]) -> None:
    samples, rate = spoken
    with Transcriber(asr.url) as client:
        whole = client.transcribe(CLIPS[0])
        assert (whole.text.strip(), whole.language, whole.finish_reason) == (SAID, "en", "stop")
        assert [segment.text.strip() for segment in whole.segments] == [SAID]
        assert whole.segments[0].start == 0.0
        assert whole.segments[0].end == pytest.approx(len(samples) / rate, abs=0.01)
        assert whole.first_text_s is not None
        assert 0 < whole.first_text_s <= whole.total_s
        assert client.transcribe(CLIPS[0].read_bytes()).text == whole.text
        assert client.transcribe(samples, sample_rate=rate).text == whole.text
        stereo = np.repeat(samples[:, None], 2, axis=1).astype(np.float32) / 32768
        assert client.transcribe(stereo, sample_rate=rate).text == whole.text


def test_a_stream_is_whole(asr: LiveServer) -> None:
    with Transcriber(asr.url) as client:
        chunks = list(client.stream(CLIPS[1]))
    assert len(chunks) > 1
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.finish_reason for chunk in chunks] == [""] * (len(chunks) - 1) + ["stop"]
    assert "".join(chunk.text for chunk in chunks).strip() == SAID
    assert chunks[-1].timeline is not None
    assert chunks[-1].timeline["last_chunk"] > chunks[-1].timeline["encoded"] > 0


def test_length_is_said(asr: LiveServer) -> None:
    with Transcriber(asr.url) as client:
        assert client.transcribe(CLIPS[0], max_tokens=3).finish_reason == "length"


@pytest.mark.parametrize(
    ("audio", "params", "field"),
    [
        (b"no audio", {}, "audio_file"),
        (np.zeros(16000, np.float32), {"sample_rate": 1}, "sample_rate"),
        (np.full(16000, np.nan, np.float32), {"sample_rate": 16000}, "audio"),
        (np.zeros(0, np.float32), {"sample_rate": 16000}, "audio"),
        (CLIPS[0], {"temperature": -1.0}, "temperature"),
        (CLIPS[0], {"max_tokens": 0}, "max_tokens"),
        (CLIPS[0], {"language": "klingon"}, "language"),
        (CLIPS[0], {"extra": {"audio_file": None}}, "audio"),
    ],
)
def test_bad_input_is_typed(asr: LiveServer, audio: Any, params: dict[str, Any], field: str) -> None:
    with Transcriber(asr.url) as client, pytest.raises(InvalidArgument) as caught:
        client.transcribe(audio, **params)
    assert caught.value.field == field


def test_leaving_a_stream_ends_it_and_leaves_the_others_whole(asr: LiveServer, spoken: tuple[np.ndarray, int]) -> None:
    samples, rate = spoken
    long = np.tile(np.concatenate([samples, np.zeros(rate // 2, np.int16)]), 40)  # two minutes: windows to come

    async def work() -> None:
        async with AsyncTranscriber(asr.url) as client:
            short = asyncio.create_task(client.transcribe(CLIPS[1]))
            held = client.stream(long, sample_rate=rate)
            async for chunk in held:
                assert not chunk.final
                break
            with pytest.raises(Cancelled):
                while True:
                    await anext(held)
            assert (await short).text.strip() == SAID

    asyncio.run(work())


def test_health(asr: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    with Transcriber(asr.url) as client, SpeechClient(asr.url) as speech:
        health = client.health()
        assert health.ok, health.problem
        assert health.latency_s is not None
        assert "has no model 'tts'; it has: asr, asr_decoder" in speech.health().problem
    assert command(asr, "health") == 0
    assert "transcribes: the canary's first chunk took" in capsys.readouterr().out
    assert command(asr, "health", "--model", "tts") == 1


def test_transcribe_keeps_the_order(asr: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(clip) for clip in CLIPS]
    assert command(asr, "transcribe", *files, "nothing.wav", "--jobs", "3") == 2
    printed = capsys.readouterr()
    assert printed.out == f"==> {files[0]} <==\n{SAID}\n\n==> {files[1]} <==\n{SAID}\n"
    assert "nothing.wav: The value of FILE is not valid: the file nothing.wav cannot be read" in printed.err
    assert "2.67 s of audio in" in printed.err


def test_a_refusal_names_the_file_or_the_option(
    asr: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.mp3"
    soundfile.write(damaged, np.zeros(24000), 24000)
    damaged.write_bytes(damaged.read_bytes()[:4] + bytes(400))
    assert command(asr, "transcribe", str(damaged)) == 2
    assert capsys.readouterr().err == (
        f"{damaged} cannot be read as audio: it is damaged, or no wav, flac, mp3 or ogg that libsndfile knows.\n"
    )
    assert command(asr, "transcribe", str(damaged), str(CLIPS[0])) == 2
    assert capsys.readouterr().err.splitlines()[0].startswith(f"{damaged} cannot be read as ")
    assert command(asr, "transcribe", str(CLIPS[0]), "--max-tokens", "-1") == 2
    assert capsys.readouterr().err.startswith("The value of --max-tokens is not valid: -1 is below 1")


def test_transcribe_writes_files(asr: LiveServer, tmp_path: Path) -> None:
    files = [str(CLIPS[0]), str(CLIPS[1]), str(CLIPS[0])]
    assert command(asr, "transcribe", *files, "-o", str(tmp_path / "all.json")) == 0
    lines = [json.loads(line) for line in (tmp_path / "all.json").read_text().splitlines()]
    assert [line["file"] for line in lines] == files
    assert {line["text"] for line in lines} == {SAID}
    assert command(asr, "transcribe", *files[:2], "-o", str(tmp_path), "--format", "vtt") == 0
    assert (tmp_path / "slt.vtt").read_text() == f"WEBVTT\n\n00:00:00.000 --> 00:00:02.670\n{SAID}\n\n"
    assert (tmp_path / "rms.vtt").exists()


def test_transcribe_from_a_pipe(asr: LiveServer, spoken: tuple[np.ndarray, int]) -> None:
    samples, rate = spoken
    line = [sys.executable, "-m", "client", "transcribe", "--url", asr.url, "--raw", str(rate), "--format", "srt"]
    done = subprocess.run(line, cwd=ROOT, input=samples.astype("<i2").tobytes(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == f"1\n00:00:00,000 --> 00:00:02,670\n{SAID}\n\n"


def test_ctrl_c_cancels_all_that_is_under_way(asr: LiveServer, tmp_path: Path, spoken: tuple[np.ndarray, int]) -> None:
    samples, rate = spoken
    for name in ("a.wav", "b.wav"):
        soundfile.write(tmp_path / name, np.tile(samples, 100), rate)
    line = [sys.executable, "-m", "client", "transcribe", "--url", asr.url, "a.wav", "b.wav"]
    process = subprocess.Popen(
        line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"==> a.wav <==\n"  # written with the first chunk
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert b"Interrupted" in errors
    assert b"Traceback" not in errors


def test_bench(asr: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, address = tmp_path / "found.json", f"127.0.0.1:{asr.metrics}"
    arguments = ("asr", "--metrics-url", address, "--concurrency", "2", "--requests", "2", "--warmup", "0", "--unseen")
    assert command(asr, "bench", *arguments, "--json", str(file), "--records") == 0
    found = json.loads(file.read_text())
    (level,) = found["levels"]
    assert (level["started"], level["finished"], level["lost"], level["errors"]) == (2, 2, 0, {})
    assert (level["latency"]["n"], level["first_text"]["n"]) == (2, 2)
    assert level["audio_per_s"] == pytest.approx((2.67 + 2.845) / level["window"])
    assert level["metrics"]["voxstage_asr_requests"] == level["metrics"]["voxstage_asr_cache_misses"] == 2
    assert None not in level["stages"]["stages"].values()
    assert level["stages"]["rest"] >= 0
    assert "RTFx" in capsys.readouterr().out
