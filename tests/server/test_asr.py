"""Speech to text through a real Triton: Whisper tiny.en on real speech, alone and under load, bad input.

One server for all of it, with small limits so that they are met.
"""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizerFast

from backends.asr.default_checkpoint import default_checkpoint
from backends.asr.prompt_service import INPUTS
from backends.launch.repository import find_models
from backends.settings import home
from backends.timeline import ASR_STATIONS
from tests.judge import word_error_rate, words
from tests.server.direct import DirectStream
from tests.server.live import LiveServer
from tests.server.transcribing import RATE, Transcription, samples, spoken, tensors, together, transcribe, voice

REQUESTS, WINDOWS = 16, 2
RIVER = "A small boat came slowly down the river."
INSIDE, SLOTS = "voxstage_asr_inside", "voxstage_decoder_slots"
SILENCE = np.zeros(RATE, dtype=np.float32)


@pytest.fixture(scope="module")
def asr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Its end is a test too: nothing is left inside, whatever clients did."""
    live = LiveServer(
        tmp_path_factory.mktemp("asr"), "--pipelines", "asr",
        "--set", f"asr_prompt.max_requests={REQUESTS}", "--set", f"asr_prompt.windows_per_request={WINDOWS}",
        "--set", "asr_prompt.max_seconds=200", "--set", "asr_decoder.check_integrity=true",
    )  # fmt: skip
    try:
        yield live
        idle(live)
        assert live.settled("voxstage_decoder_integrity_failures") == 0
        live.end()
    finally:
        live.kill()


@pytest.fixture(scope="module")
def alone(asr: LiveServer) -> list[Transcription]:
    """Every clip by itself."""
    return [transcribe(asr.url, **clip) for clip in spoken()]


def idle(live: LiveServer) -> None:
    for gauge in (INSIDE, SLOTS, "voxstage_decoder_waiting", "voxstage_encoder_clips"):
        live.wait_metric(gauge, 0, 20)


def test_only_the_pipeline_that_was_asked_for_is_loaded(asr: LiveServer) -> None:
    assert set(asr.stages) == {"asr_prompt", "asr_encoder", "asr_decoder"}
    (ensemble,) = [model for model in find_models([home() / "ensemble"]) if model.name == "asr"]
    assert ensemble.inputs == INPUTS


def test_transcripts_are_those_of_transformers(asr: LiveServer, alone: list[Transcription]) -> None:
    torch.set_num_threads(1)
    folder = default_checkpoint(home())
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer = WhisperTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    clips: list[np.ndarray[Any, Any]] = [samples("rms"), samples("slt"), SILENCE]
    found = [*alone[3:], transcribe(asr.url, audio=SILENCE, sample_rate=RATE)]
    for clip, heard in zip(clips, found, strict=True):
        with torch.inference_mode():
            tokens = model.generate(extractor(clip, sampling_rate=RATE, return_tensors="pt").input_features)[0]
        # Silence too: one window is heard as it is, and what this model hears in silence is "you".
        assert heard.text == tokenizer.decode(tokens, skip_special_tokens=True).strip()
        assert heard.finish_reason == "stop" and heard.language == "en"
    assert all(word_error_rate(RIVER, heard.text) == 0 for heard in alone[3:])


def test_a_response_says_text_times_and_stations(asr: LiveServer, alone: list[Transcription]) -> None:
    heard = alone[3]
    assert len(heard.deltas) > 1, "text comes while it is written"
    assert heard.segments == [
        {"start": 0.0, "end": pytest.approx(len(samples("rms")) / RATE, abs=1e-3), "text": heard.text}
    ]
    assert tuple(heard.timeline) == ASR_STATIONS
    assert list(heard.timeline.values()) == sorted(heard.timeline.values())


def test_full_is_refused_at_once_nobody_is_lost_and_everybody_hears_what_they_hear_alone(
    asr: LiveServer, alone: list[Transcription]
) -> None:
    idle(asr)
    asked = REQUESTS + 8
    found = together(asr.url, (spoken() * 5)[:asked])
    refused = [each for each in found if isinstance(each, Exception)]
    assert 0 < len(refused) <= 8, "no more than what is above the limit"
    for each in refused:
        assert f"UNAVAILABLE {REQUESTS} transcriptions are inside" in str(each)
    for at, each in enumerate(found):
        if not isinstance(each, Exception):
            assert (each.text, each.segments) == (alone[at % 5].text, alone[at % 5].segments)
    assert asr.settled("voxstage_asr_shed") == len(refused)
    idle(asr)


def test_a_seed_gives_the_same_text_alone_and_in_company(asr: LiveServer) -> None:
    sampled = {**spoken()[0], "temperature": 1.0, "seed": 7}
    first, *_ = together(asr.url, [sampled, *spoken()[1:3]])
    assert first.text == transcribe(asr.url, **sampled).text


def test_any_rate_channels_and_container(asr: LiveServer) -> None:
    clip = samples("rms")
    stereo = np.stack([clip, clip], axis=1)
    files = []
    for kind, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")):
        file = io.BytesIO()
        soundfile.write(file, stereo, RATE, format=kind, subtype=subtype)
        files.append({"audio_file": file.getvalue()})
    low = np.fft.irfft(np.fft.rfft(clip)[: len(clip) // 4], len(clip) // 2).astype(np.float32) / 2
    requests = [
        *files,
        {"audio": stereo.ravel(), "sample_rate": RATE, "channels": 2},
        {"audio": low, "sample_rate": RATE // 2},
        {"audio": np.repeat(clip, 3), "sample_rate": 3 * RATE, "context": "boat, river"},
    ]
    for heard in together(asr.url, requests):
        assert words(heard.text) == words(RIVER)


def test_generate_stream_takes_json_and_a_data_uri(asr: LiveServer) -> None:
    import base64

    body = {"audio_file": "data:audio/flac;base64," + base64.b64encode(voice("slt")).decode(), "language": "en"}
    request = urllib.request.Request(
        f"{asr.base}/v2/models/asr/generate_stream", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        events = [json.loads(line[6:]) for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert words("".join(event["text"] for event in events)) == words(RIVER)
    assert [event["final"] for event in events] == [False] * (len(events) - 1) + [True]


@pytest.fixture(scope="module")
def minutes() -> np.ndarray[Any, Any]:
    """Eight sentences over 100 s: pauses of seconds, and half a minute of nothing in the middle."""
    pause, nothing = np.zeros(5 * RATE, dtype=np.float32), np.zeros(40 * RATE, dtype=np.float32)
    half = np.concatenate([part for name in ("rms", "slt", "rms", "slt") for part in (samples(name), pause)])
    return np.concatenate([half, nothing, half])


def test_long_audio_comes_in_order_joined_and_the_same_under_load(
    asr: LiveServer, minutes: np.ndarray[Any, Any]
) -> None:
    before = asr.settled("voxstage_asr_windows")
    heard = transcribe(asr.url, audio=minutes, sample_rate=RATE)
    windows = asr.settled("voxstage_asr_windows") - before
    assert windows >= 3 and asr.metric("voxstage_asr_silent_windows") >= 1
    assert len(heard.segments) == windows and heard.finish_reason == "stop"
    assert heard.text == " ".join(segment["text"] for segment in heard.segments)
    assert word_error_rate(" ".join([RIVER] * 8), heard.text) <= 0.25
    assert heard.segments[-1]["end"] <= len(minutes) / RATE
    again, *short = together(asr.url, [{"audio": minutes, "sample_rate": RATE}, *spoken()[3:]])
    assert again.text == heard.text and again.segments == heard.segments
    assert [words(each.text) for each in short] == [words(RIVER)] * 2


def test_a_window_that_is_cut_says_length(asr: LiveServer, alone: list[Transcription]) -> None:
    heard = transcribe(asr.url, audio_file=voice("rms"), max_tokens=3)
    assert heard.finish_reason == "length" and alone[3].text.startswith(heard.text) and heard.text


def test_silence_of_more_than_a_window_is_empty(asr: LiveServer) -> None:
    heard = transcribe(asr.url, audio=np.zeros(45 * RATE, dtype=np.float32), sample_rate=RATE)
    assert (heard.text, heard.segments, heard.finish_reason) == ("", [], "stop")


def test_whoever_hangs_up_leaves_nothing_behind(asr: LiveServer, minutes: np.ndarray[Any, Any]) -> None:
    idle(asr)
    before = asr.settled("voxstage_asr_windows")
    fields = tensors({"audio": minutes, "sample_rate": RATE})
    streams = [DirectStream(asr.url, "asr", **fields) for _ in range(2)]
    for number, stream in enumerate(streams):
        if number:  # one of them before its first text
            assert stream.next(timeout=60) is not None
        stream.cancel()
    idle(asr)
    assert asr.settled("voxstage_asr_windows") - before < 2 * 4, "windows behind the hang-up are not read"
    assert words(transcribe(asr.url, audio_file=voice("slt")).text) == words(RIVER)


def wave(data: np.ndarray[Any, Any], rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, data, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "audio: is missing; give audio (samples) or audio_file"),
    ({"audio": SILENCE, "sample_rate": RATE, "audio_file": b"x"}, "audio: and audio_file are two recordings"),
    ({"audio": SILENCE}, "sample_rate: is missing"),
    ({"audio_file": b"fLaC", "sample_rate": RATE}, "sample_rate: has no meaning beside audio_file"),
    ({"audio": SILENCE[:0], "sample_rate": RATE}, "audio: holds 0 samples"),
    ({"audio": SILENCE[:100], "sample_rate": RATE}, "audio: lasts 0.00625 s (samples: 100)"),
    ({"audio": np.full(RATE, np.nan), "sample_rate": RATE}, "audio: holds a sample that is not a finite number"),
    ({"audio": np.full(RATE, np.inf), "sample_rate": RATE}, "audio: holds a sample that is not a finite number"),
    ({"audio": np.full(RATE, 9000.0), "sample_rate": RATE}, "audio: has a sample of 9000, and full scale is 1"),
    ({"audio": np.zeros(201 * RATE), "sample_rate": RATE}, "audio: lasts 201 s or more; the longest audio has 200 s"),
    ({"audio_file": wave(np.zeros(201 * 8000), 8000)}, "audio_file: lasts 201 s or more; the longest audio has 200 s"),
    ({"audio": SILENCE, "sample_rate": 0}, "sample_rate: 0 is below 4000"),
    ({"audio": SILENCE, "sample_rate": 10_000_000}, "sample_rate: 10000000 is above 192000"),
    ({"audio": SILENCE, "sample_rate": RATE, "channels": 8}, "channels: 8 is above 2"),
    ({"audio_file": wave(np.zeros((RATE, 8)))}, "audio_file: 8 channels"),
    ({"audio": SILENCE[:1601], "sample_rate": RATE, "channels": 2}, "audio: has shape [1601]"),
    ({"audio_file": b""}, "audio_file: is empty"),
    ({"audio_file": b"no sound at all"}, "audio_file: begins with the bytes 6e 6f 20 73"),
    ({"audio_file": voice("rms")[:60]}, "audio_file: "),
    ({"audio_file": voice("rms"), "language": "de"}, "language: 'de': this checkpoint hears English only"),
    ({"audio_file": voice("rms"), "context": "x" * 5000}, "context: is 5000 bytes long, the limit is 4096 bytes"),
    ({"audio_file": voice("rms"), "max_tokens": 0}, "max_tokens: 0 is below 1"),
    ({"audio_file": voice("rms"), "max_tokens": 447}, "max_tokens: 447 is above 446"),
    ({"audio_file": voice("rms"), "temperature": -1.0}, "temperature: -1"),
    ({"audio_file": voice("rms"), "seed": -1}, "seed: -1 is below 0"),
]


def test_bad_requests_are_refused_by_name_before_anything_is_queued(asr: LiveServer) -> None:
    idle(asr)
    names = ("voxstage_encoder_requests", "voxstage_decoder_requests")
    before = [asr.settled(name) for name in names]
    for fields, said in BAD:
        with pytest.raises(Exception, match="INVALID_ARG") as caught:
            transcribe(asr.url, **fields)
        assert f"INVALID_ARG {said}" in str(caught.value), said
    assert [asr.settled(name) for name in names] == before
    assert asr.metric("voxstage_asr_refused") == len(BAD)
    assert words(transcribe(asr.url, audio_file=voice("rms")).text) == words(RIVER)


def test_more_windows_than_the_decoder_takes_are_refused_at_the_start(tmp_path: Path) -> None:
    from tests.server.dummies import Serve

    with Serve(tmp_path, "--pipelines", "asr", "--set", "asr_decoder.max_waiting=10") as serve:
        assert serve.wait_ended() == 2
        assert "128 requests of 4 windows (windows_per_request) are above 26" in serve.err
