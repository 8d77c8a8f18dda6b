"""From a file or samples to what the encoder reads, and what is refused on the way."""

from __future__ import annotations

import io
import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from backends.encoder.clip import ClipLimits
from backends.errors import CheckpointError, InvalidArgument
from backends.voices.clip import (
    MAX_FILE_BYTES,
    loudness,
    prepare,
    read_clip_file,
    read_clip_samples,
)

WANTED = ClipLimits(sampling_rate=24000, hop=1920, max_seconds=4.0)


def tone(seconds: float, rate: int, hertz: float = 440.0, level: float = 0.1) -> np.ndarray[Any, Any]:
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: np.ndarray[Any, Any], rate: int, kind: str, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def clip(data: bytes) -> np.ndarray[Any, Any]:
    return read_clip_file("reference_file", data).prepare(WANTED)


def test_the_format_is_the_codecs(voice: Path, tmp_path: Path) -> None:
    wanted = ClipLimits.load(voice / "codec", 30.0)
    assert (wanted.sampling_rate, wanted.hop, wanted.max_frames) == (24000, 1920, 375)
    (tmp_path / "config.json").write_text('{"sampling_rate": 24000}')
    with pytest.raises(CheckpointError, match="downsample_rate is missing from"):
        ClipLimits.load(tmp_path, 30.0)


def test_loudness_is_that_of_the_public_processor() -> None:
    """mean square 0.01 is -20 dBFS; the gain is at most 3 dB, 10^(3/20)."""
    ones = np.ones(1000, np.float32)
    for level, gain in ((0.1, 1.0), (0.09, 0.1 / 0.09), (0.001, 10**0.15), (0.9, 10**-0.15)):
        assert np.allclose(loudness(level * ones), gain * level * ones, rtol=1e-6)


def test_samples_at_the_codecs_rate_keep_their_place() -> None:
    """No resampling, one gain, zeros to a whole frame."""
    samples = tone(1.0, 24000)
    made = clip(encoded(samples, 24000, "WAV", "FLOAT"))
    assert made.dtype == np.float32 and len(made) == 13 * 1920
    assert np.array_equal(made[:24000], loudness(samples)) and not made[24000:].any()


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
@pytest.mark.parametrize("rate", [16000, 44100])
def test_every_kind_of_file_is_the_same_sound(kind: str, rate: int) -> None:
    made = clip(encoded(tone(1.0, rate), rate, kind))
    want = loudness(tone(1.0, 24000))
    # Lossy files may be longer and begin later; the tone is the same.
    spectrum = np.abs(np.fft.rfft(made[2400:21600]))
    assert abs(int(spectrum.argmax()) * 24000 / 19200 - 440) <= 2
    assert abs(np.std(made[2400:21600]) / np.std(want) - 1) < 0.03
    assert len(made) in (13 * 1920, 14 * 1920)


def test_two_channels_become_their_mean() -> None:
    left, right = tone(0.5, 24000), tone(0.5, 24000, 660.0)
    stereo = np.stack([left, right], axis=1)
    made = clip(encoded(stereo, 24000, "WAV", "FLOAT"))
    assert np.array_equal(made[:12000], loudness(stereo.mean(axis=1, dtype=np.float32)))
    raw = read_clip_samples("reference_audio", stereo.reshape(-1), 2, 24000, WANTED)
    assert np.array_equal(raw.prepare(WANTED), made)


def test_a_codec_of_two_channels_hears_two() -> None:
    """In turns, one gain for both, as the public processor has it; a clip of one channel is heard on both sides."""
    wanted = ClipLimits(sampling_rate=24000, hop=1920, max_seconds=4.0, channels=2)
    left, right = tone(0.5, 24000), tone(0.5, 24000, 660.0, level=0.2)
    stereo = np.stack([left, right], axis=1)
    made = read_clip_file("reference_file", encoded(stereo, 24000, "WAV", "FLOAT")).prepare(wanted).reshape(-1, 2)
    assert len(made) == 7 * 1920 and np.array_equal(made[:12000], loudness(stereo)) and not made[12000:].any()
    both = read_clip_samples("reference_audio", left, 1, 24000, wanted).prepare(wanted).reshape(-1, 2)
    assert np.array_equal(both[:, 0], both[:, 1]) and np.array_equal(
        both[:, 0], clip(encoded(left, 24000, "WAV", "FLOAT"))
    )
    slower = prepare("reference_audio", stereo, 12000, wanted).reshape(-1, 2)
    alone = prepare("reference_audio", stereo[:, 1:], 12000, wanted).reshape(-1, 2)
    assert len(slower) == 13 * 1920
    gain = np.std(slower[:24000, 1]) / np.std(alone[:24000, 1])
    assert np.allclose(slower[:24000, 1], gain * alone[:24000, 1], atol=1e-6)


def test_the_longest_clip_fits_and_a_sample_more_does_not() -> None:
    for rate in (8000, 24000, 44100):
        longest = encoded(tone(4.0, rate), rate, "WAV")
        assert len(clip(longest)) == 50 * 1920
        with pytest.raises(InvalidArgument, match="or more; the longest clip has 4 s"):
            clip(encoded(tone(4.0 + 1 / rate, rate), rate, "WAV"))


def test_the_same_bits_every_time() -> None:
    data = encoded(tone(0.7, 44100), 44100, "FLAC")
    assert np.array_equal(clip(data), clip(data))


def wav_header(rate: int, channels: int, data_bytes: int) -> bytes:
    return (
        b"RIFF" + struct.pack("<I", 36 + data_bytes) + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * channels * 2, channels * 2, 16)
        + b"data" + struct.pack("<I", data_bytes)
    )  # fmt: skip


NOISE = np.random.default_rng(1).uniform(-0.1, 0.1, 24000).astype(np.float32)
DAMAGED = "cannot be read as audio: it is damaged, or no wav, flac, mp3 or ogg that libsndfile knows"
BAD_FILES = {
    "empty": (b"", "is empty"),
    "text": (b"hello, this is no audio at all", "begins with the bytes 68 65 6c 6c; wav, flac, mp3 and ogg do not"),
    "magic alone": (b"RIFF\0\0\0\0WAVE", DAMAGED),
    "cut flac": (encoded(NOISE, 24000, "FLAC")[:40], DAMAGED),
    "not an mp3": (b"\xff\xfb" + b"\0" * 400, DAMAGED),
    "cut mp3": (encoded(NOISE, 24000, "MP3")[:400], DAMAGED),
    "aiff": (encoded(NOISE, 24000, "AIFF"), "begins with the bytes 46 4f 52 4d"),
    "no samples": (encoded(NOISE[:0], 24000, "WAV"), "lasts 0 s (samples: 0); the shortest clip has 0.1 s"),
    "one sample": (encoded(NOISE[:1], 24000, "WAV"), "lasts 4.17e-05 s (samples: 1); the shortest clip has 0.1 s"),
    "rate 0": (wav_header(0, 1, 48000) + b"\1\0" * 24000, "reference_file: "),
    "rate 10^7": (wav_header(10**7, 1, 48000) + b"\1\0" * 24000, "10000000 samples a second is outside 4000...192000"),
    "8 channels": (encoded(np.stack([NOISE] * 8, 1), 24000, "WAV"), "8 channels; a clip has 1 or 2"),
    "NaN": (encoded(np.where(np.arange(24000) == 9000, np.nan, NOISE), 24000, "WAV", "FLOAT"), "not a finite number"),
    "inf": (encoded(np.where(np.arange(24000) == 9000, np.inf, NOISE), 24000, "WAV", "FLOAT"), "not a finite number"),
    "16-bit numbers as floats": (encoded(NOISE * 32767, 24000, "WAV", "FLOAT"), "and full scale is 1"),
    "silence": (encoded(NOISE * 0, 24000, "WAV"), "is silent"),
    "too long": (encoded(np.tile(NOISE, 5), 24000, "FLAC"), "lasts 5 s or more; the longest clip has 4 s"),
    "too large": (b"RIFF" + b"\0" * MAX_FILE_BYTES, f"the limit is {MAX_FILE_BYTES}"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_by_name(name: str) -> None:
    data, words = BAD_FILES[name]
    with pytest.raises(InvalidArgument, match=re.escape(words)) as caught:
        clip(data)
    assert caught.value.field == "reference_file"


BAD_SAMPLES = {
    "none": (NOISE[:0], 1, 24000, "reference_audio", "holds 0 samples"),
    "one": (NOISE[:1], 1, 24000, "reference_audio", "the shortest clip has 0.1 s"),
    "rate 0": (NOISE, 1, 0, "reference_sample_rate", "0 samples a second is outside 4000...192000"),
    "rate 10^7": (NOISE, 1, 10**7, "reference_sample_rate", "10000000 samples a second is outside"),
    "8 channels": (NOISE, 8, 24000, "reference_channels", "8 channels; a clip has 1 or 2"),
    "0 channels": (NOISE, 0, 24000, "reference_channels", "0 channels"),
    "odd stereo": (NOISE[:23999], 2, 24000, "reference_audio", "has shape [23999], expected [n * 2] samples"),
    "NaN": (np.where(np.arange(24000) == 23999, np.nan, NOISE), 1, 24000, "reference_audio", "not a finite number"),
    "too long": (np.tile(NOISE, 5), 1, 24000, "reference_audio", "or more; the longest clip has 4 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_bad_samples_are_refused_by_field(name: str) -> None:
    samples, channels, rate, field, words = BAD_SAMPLES[name]
    with pytest.raises(InvalidArgument, match=re.escape(words)) as caught:
        read_clip_samples("reference_audio", samples.astype(np.float32), channels, rate, WANTED).prepare(WANTED)
    assert caught.value.field == field


def lying_flac(seconds: int) -> bytes:
    """A FLAC file that says that it has half a second, and holds ``seconds`` of silence in very few bytes."""
    data = bytearray(encoded(np.zeros(seconds * 24000, np.float32), 24000, "FLAC"))
    # STREAMINFO begins at byte 8; its last 36 bits before the MD5 sum are the number of samples.
    data[22:26] = struct.pack(">I", 12000)
    return bytes(data)


@pytest.mark.parametrize("honest", [True, False])
def test_a_flac_bomb_costs_no_more_than_the_longest_clip(honest: bool) -> None:
    seconds = 3600
    bomb = encoded(np.zeros(seconds * 24000, np.float32), 24000, "FLAC") if honest else lying_flac(seconds)
    assert len(bomb) < seconds * 24000 / 100, "it is no bomb"
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(InvalidArgument):
        clip(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\n{len(bomb)} bytes, {seconds} s: {peak / 2**20:.1f} MiB, {time.process_time() - began:.3f} s")
    assert peak < 8 * 2**20


def test_a_wav_header_that_promises_more_than_there_is() -> None:
    """The file is what is there, not what its header says."""
    made = clip(wav_header(24000, 1, 2 * 24000) + encoded(NOISE, 24000, "WAV")[44 : 44 + 2 * 12000])
    assert len(made) == 7 * 1920


def test_a_file_that_does_not_say_how_long_it_is() -> None:
    """As written into a pipe: FLAC says 0 samples, WAV the largest size that there is."""
    for kind, fields, unknown in (("FLAC", (22,), bytes(4)), ("WAV", (4, 40), b"\xff" * 4)):
        whole = encoded(NOISE, 24000, kind)
        piped = bytearray(whole)
        for at in fields:
            piped[at : at + 4] = unknown
        assert np.array_equal(clip(bytes(piped)), clip(whole))
    long = bytearray(encoded(np.tile(NOISE, 60), 24000, "FLAC"))
    long[22:26] = bytes(4)
    with pytest.raises(InvalidArgument, match="the longest clip has 4 s"):
        clip(bytes(long))


def test_prepare_does_not_change_what_it_was_given() -> None:
    samples = NOISE.copy()
    prepare("reference_audio", samples[:, None], 24000, WANTED)
    assert np.array_equal(samples, NOISE)
