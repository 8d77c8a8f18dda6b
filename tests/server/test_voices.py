"""Voices from a clip, through the server: each request speaks with its own, and a clip is encoded once."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from backends.encoder.clip import ClipLimits
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.moss_tts_local_prompt import PromptBuilder
from backends.settings import home
from backends.voices.clip import read_clip_file
from client import InvalidArgument, SpeechClient
from client.wav import wav_header
from tests.server.direct import DirectStream
from tests.server.events import decode_b64, generate
from tests.server.live import LiveServer
from tests.server.voices import FILES, TEXT, VOICES, Counters, Together, encodes, piece
from tests.spectrum import distances

FRAMES = 4


@pytest.fixture(scope="module")
def codec(voice: Path) -> MossAudioTokenizer:
    torch.set_num_threads(1)
    return MossAudioTokenizer.load(voice / "codec")


def clip_codes(codec: MossAudioTokenizer, data: bytes, voice: Path) -> torch.Tensor:
    wanted = ClipLimits.load(voice / "codec", 30.0)
    return codec.encode(torch.from_numpy(read_clip_file("reference_file", data).prepare(wanted)))


def test_two_voices_in_turn_never_mix(
    server: LiveServer, client: SpeechClient, codec: MossAudioTokenizer, voice: Path
) -> None:
    """One text 50 times with two clips in turn, then 8 at once: each is, bit for bit, what its clip gives alone."""
    clips = {name: piece(name, 0.1, 2.4) for name in VOICES}
    counters = Counters(server)
    alone = {name: client.synthesize(TEXT, max_frames=FRAMES, **clips[name]).audio for name in VOICES}
    assert counters.moved() == (0, 2, 0)
    assert not np.array_equal(alone["rms"], alone["slt"])
    for turn in range(50):
        name = VOICES[turn % 2]
        assert np.array_equal(client.synthesize(TEXT, max_frames=FRAMES, **clips[name]).audio, alone[name]), turn
    assert counters.moved() == (50, 0, 0)
    names = [VOICES[number % 2] for number in range(8)]
    spoken = Together(server.url, [{"max_frames": FRAMES, **clips[name]} for name in names]).audio()
    for name, audio in zip(names, spoken, strict=True):
        assert np.array_equal(audio, alone[name])
    assert counters.moved() == (8, 0, 0)


def test_a_voice_sounds_like_its_clip(client: SpeechClient, codec: MossAudioTokenizer, voice: Path) -> None:
    """The long-term spectrum of every sentence is nearest the own clip, as the codec renders it, of both clips."""
    references = {name: codec.decode(clip_codes(codec, data, voice)).numpy() for name, data in FILES.items()}
    texts = (TEXT, "The ship sails at noon.", "Thank you very much, and have a great day.")
    for name in VOICES:
        for text in texts:
            found = distances(client.synthesize(text, voice=name, max_frames=60).audio, references, 24000)
            print(f"\n{name}: { {other: round(each, 1) for other, each in found.items()} } dB")
            assert min(found, key=lambda each: found[each]) == name, text


def test_a_voice_and_a_seed_give_the_same_bits_on_a_miss_a_hit_and_under_load(
    server: LiveServer, client: SpeechClient
) -> None:
    sampling = {"temperature": 0.8, "seed": 11, "max_frames": FRAMES}
    clip = piece("slt", 0.15, 1.3)
    counters = Counters(server)
    miss = client.synthesize(TEXT, **sampling, **clip).audio
    hit = client.synthesize(TEXT, **sampling, **clip).audio
    assert counters.moved() == (1, 1, 0)
    others = [{**sampling, "seed": n, **piece("rms", 0.02 * n, 1.0)} for n in range(4)]
    plain = [{**sampling, "seed": n} for n in range(3)]
    loaded = Together(server.url, [*others, {**sampling, **clip}, *plain]).audio()[4]
    assert np.array_equal(miss, hit) and np.array_equal(miss, loaded)
    other_seed = client.synthesize(TEXT, **{**sampling, "seed": 12}, **clip).audio
    assert not np.array_equal(miss, other_seed)


def test_equal_reference_texts_do_not_mix_voices(server: LiveServer, client: SpeechClient) -> None:
    """Two clips that are said to say the same: the prompts begin alike, and each goes on from its own clip."""
    said = "A small boat came slowly down the river."
    requests = {name: {"reference_audio": FILES[name], "reference_text": said, "max_frames": FRAMES} for name in VOICES}
    alone = {name: client.synthesize(TEXT, **fields).audio for name, fields in requests.items()}
    assert not np.array_equal(alone["rms"], alone["slt"])
    reference = client.synthesize(TEXT, reference_audio=FILES["slt"], max_frames=FRAMES).audio
    assert not np.array_equal(alone["slt"], reference)
    names = [VOICES[number % 2] for number in range(8)]
    for name, audio in zip(names, Together(server.url, [requests[name] for name in names]).audio(), strict=True):
        assert np.array_equal(audio, alone[name])


def test_the_rows_of_a_voice_hit_the_prefix_cache(
    server: LiveServer, client: SpeechClient, codec: MossAudioTokenizer, voice: Path
) -> None:
    """By hand: the rows that two prompts with one voice share, in whole pages of 16."""
    builder, codes = PromptBuilder(voice / "tts"), clip_codes(codec, FILES["rms"], voice).numpy()
    texts = ("Cups of tea.", "Nine long roads.")
    prompts = [builder.build(text, "English", codes) for text in texts]
    same = (prompts[0][: len(prompts[1])] == prompts[1][: len(prompts[0])]).all(axis=1)
    shared = int(np.argmin(same))
    assert shared > len(codes)
    for text in texts:
        counters = Counters(server, "voxstage_decoder_prefix_hit_rows")
        client.synthesize(text, voice="rms", max_frames=2)
        rows = counters.moved()[0]
    assert rows == shared // 16 * 16


def test_a_clip_gives_the_codes_and_the_speech_of_its_own(
    server: LiveServer, client: SpeechClient, codec: MossAudioTokenizer, voice: Path
) -> None:
    """The whole path against the parts: our own encode of the clip, its rows sent to the decoder, its codes decoded."""
    rows = PromptBuilder(voice / "tts").build(TEXT, "English", clip_codes(codec, FILES["slt"], voice).numpy())
    limits = {"max_frames": np.array([FRAMES], np.int32)}
    with DirectStream(server.url, "tts_decoder", rows=rows, **limits) as stream:
        codes = np.concatenate([answer["codes"] for answer in stream.rest()])
    audio = client.synthesize(TEXT, reference_audio=FILES["slt"], max_frames=FRAMES).audio
    assert np.array_equal(audio, codec.decode(torch.from_numpy(codes).long()).numpy())


def tone(n: int) -> np.ndarray[Any, Any]:
    return (0.1 * np.sin(np.arange(n) / 20)).astype(np.float32)


#: name → fields, the field that the answer names, words that it holds. test_clip.py has the whole table.
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "0 samples": ({"reference_audio": tone(0), "reference_sample_rate": 24000}, "reference_audio", "holds 0 samples"),
    "1 sample": ({"reference_audio": tone(1), "reference_sample_rate": 24000}, "reference_audio", "(samples: 1)"),
    "nan": ({"reference_audio": tone(24000) * np.nan, "reference_sample_rate": 24000}, "reference_audio", "finite"),
    "too long": ({"reference_audio": tone(240_010), "reference_sample_rate": 8000}, "reference_audio", "30 s"),
    "8 channels": (
        {"reference_audio": np.tile(tone(24000)[:, None], 8), "reference_sample_rate": 24000},
        "reference_channels",
        "8 is above 2",
    ),
    "no rate": ({"reference_audio": tone(24000)}, "reference_sample_rate", "is missing"),
    "rate 0": ({"reference_audio": tone(24000), "reference_sample_rate": 0}, "reference_sample_rate", "0 is below"),
    "rate 10^7": ({"reference_audio": tone(24000), "reference_sample_rate": 10**7}, "reference_sample_rate", "192000"),
    "unreadable": ({"reference_audio": b"RIFF....WAVEfmt "}, "reference_file", "cannot be read"),
    "no audio": ({"reference_audio": b"<html>"}, "reference_file", "wav, flac, mp3 and ogg do not"),
    "an hour": ({"reference_audio": wav_header(8000, 57_600_000) + b"\1\0" * 300_000}, "reference_file", "30 s"),
    "unknown": ({"voice": "nobody"}, "voice", "'nobody' is unknown; known voices: rms, slt"),
    "two voices": ({"voice": "slt", "reference_audio": FILES["slt"]}, "reference_file", "is given beside voice"),
    "text alone": ({"reference_text": "Hello."}, "reference_text", "has no meaning alone"),
}


def test_a_bad_voice_is_refused_before_anything_is_enqueued(server: LiveServer, client: SpeechClient) -> None:
    enqueued, before = Counters(server, "voxstage_decoder_requests"), encodes(server)
    for case, (fields, field, words) in BAD.items():
        with pytest.raises(InvalidArgument) as caught:
            client.synthesize(TEXT, **fields)
        assert (caught.value.field, caught.value.code) == (field, "INVALID_ARG"), case
        assert words in caught.value.detail, case
    assert enqueued.moved() == (0,) and encodes(server) == before
    assert client.synthesize(TEXT, max_frames=1).finish_reason == "length"


def test_over_http_a_name_or_a_data_uri(server: LiveServer, client: SpeechClient) -> None:
    wanted = client.synthesize(TEXT, voice="slt", max_frames=4, format="s16").audio
    uri = "data:audio/flac;base64," + base64.b64encode(FILES["slt"]).decode()
    for voice in ({"voice": "slt"}, {"reference_file": uri}):
        status, events = generate(server.http, {"text": TEXT, "max_frames": 4, "format": "b64", **voice})
        assert status == 200
        assert np.array_equal(np.concatenate([decode_b64(event) for event in events]), wanted)
    status, events = generate(server.http, {"text": TEXT, "voice": "nobody"})
    assert status == 400 and "INVALID_ARG voice: 'nobody' is unknown" in events[0]["error"]


def test_speak_takes_a_name_or_a_file(server: LiveServer, client: SpeechClient, tmp_path: Path) -> None:
    wanted = client.synthesize(TEXT, voice="rms", max_frames=4, format="s16").audio

    def speak(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "client", "speak", TEXT, "--url", server.url, "-o", str(tmp_path / "a.wav")]
        return subprocess.run(
            [*command, "--max-frames", "4", *arguments], cwd=home(), capture_output=True, text=True, timeout=60
        )

    (tmp_path / "clip.flac").write_bytes(FILES["rms"])
    for given in ("rms", str(tmp_path / "clip.flac")):
        assert speak("--voice", given).returncode == 0
        assert np.array_equal(soundfile.read(tmp_path / "a.wav", dtype="int16")[0], wanted)
    went_on = speak("--voice", str(tmp_path / "clip.flac"), "--voice-text", "A small boat came slowly down the river.")
    assert went_on.returncode == 0
    assert not np.array_equal(soundfile.read(tmp_path / "a.wav", dtype="int16")[0], wanted)


def test_speak_names_the_option_and_the_file(server: LiveServer, tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole.flac", tmp_path / "damaged.flac"
    whole.write_bytes(FILES["slt"])
    damaged.write_bytes(FILES["slt"][:60])
    silent = tmp_path / "silent.wav"
    soundfile.write(silent, np.zeros(24000), 24000)
    cases = (
        (("--voice", "nobody"), "The value of --voice is not valid: 'nobody' is unknown; known voices: rms, slt."),
        (("--voice", str(damaged)), f"--voice {damaged} cannot be read as "),
        (("--voice", str(silent)), f"--voice {silent} is silent"),
        (("--voice", str(silent), "--voice-text", " "), "--voice-text holds nothing but white space."),
        (("--top-p", "2"), "The value of --top-p is not valid: 2 is above 1, the largest value."),
        (("--max-frames", "750", "--voice-text", TEXT * 99, "--voice", str(whole)), "text makes "),
    )
    for options, words in cases:
        line = [sys.executable, "-m", "client", "speak", TEXT, "--url", server.url, "-o", str(tmp_path / "a.wav")]
        refused = subprocess.run([*line, *options], cwd=home(), capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2 and refused.stderr.startswith(words), refused.stderr
        assert "reference_" not in refused.stderr and "max_frames" not in refused.stderr
