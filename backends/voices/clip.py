"""A clip of somebody's voice: from a file or from samples to what the audio encoder reads.

The same steps as in the public processor of MOSS-TTS-Local: resample, then bring the mean square to -20 dBFS with a
gain of at most 3 dB either way (``10 log10(mean(x^2) + 1e-9)``). Two channels become their mean for a codec of one
channel; one channel is heard on both sides of a codec of two.

Everything that can be wrong with a clip is found here, at a cost that its length limit bounds: a file is decoded up to
the limit and no further, whatever its header says, and never as a format that was not asked for.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from backends.encoder.clip import ClipLimits
from backends.errors import InvalidArgument

#: Names the steps below, for the cache: change it with them.
PREPROCESSING = "mean of two channels or one channel twice, soxr HQ, -20 dBFS within 3 dB, zeros to whole frames"
MIN_SECONDS = 0.1
MIN_RATE, MAX_RATE = 4_000, 192_000
MAX_CHANNELS = 2
#: The largest file: the longest clip at two channels of 32-bit samples at 48 kHz takes less.
MAX_FILE_BYTES = 16 * 2**20
#: Full scale is 1. Above this, somebody sent 16-bit numbers as floats.
MAX_PEAK = 8.0
SILENCE_PEAK = 1e-4
_TARGET_DBFS, _GAIN_DB = -20.0, 3.0
_UNKNOWN = 2**63 - 1  # frames of a file that does not say
_DATA_URI, _BASE64 = b"data:", b";base64,"
_KINDS = {"WAV", "WAVEX", "FLAC", "OGG", "MP3"}


class _Forward(soundfile.SoundFile):
    """A file that is read once, forward. The library would seek after every read, which fails where the header does not
    say how long the file is (a FLAC that was written into a pipe)."""

    def seekable(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ClipFile:
    """A wav, flac, mp3 or ogg file as it was sent. ``field`` names it in errors."""

    field: str
    data: bytes

    def parts(self) -> tuple[bytes, ...]:
        """What makes this clip differ from others, for its key."""
        return (b"file", self.data)

    def prepare(self, wanted: ClipLimits) -> NDArray[np.float32]:
        """Float32 [frames * hop * channels], in turns. Raises InvalidArgument for what is no clip, too long, too short
        or not audio."""
        with open_clip(self.field, self.data) as file:
            limit = int(wanted.max_seconds * file.samplerate)
            if tells_more(file, limit):
                raise _too_long(self.field, file.frames / file.samplerate, wanted)
            # One more than allowed tells "too long" from "just fits", and bounds what a lying header costs.
            samples = file.read(limit + 1, dtype="float32", always_2d=True)
            rate = file.samplerate
        return prepare(self.field, samples, rate, wanted)


@dataclass(frozen=True, slots=True)
class ClipSamples:
    """Samples as they were sent: float32 [n * channels], channels interleaved."""

    field: str
    samples: NDArray[np.float32]
    channels: int
    rate: int

    def parts(self) -> tuple[bytes, ...]:
        """What makes this clip differ from others, for its key."""
        return (b"samples", f"{self.samples.dtype} {self.channels} {self.rate}".encode(), self.samples.tobytes())

    def prepare(self, wanted: ClipLimits) -> NDArray[np.float32]:
        """Float32 [frames * hop * channels], in turns. Raises InvalidArgument for what is too long, too short or not
        audio."""
        return prepare(self.field, self.samples.reshape(-1, self.channels), self.rate, wanted)


@contextlib.contextmanager
def open_clip(field: str, data: bytes) -> Iterator[soundfile.SoundFile]:
    """The file in ``data``, to be read once, forward. Raises InvalidArgument, inside the block too, for what is no wav,
    flac, mp3 or ogg, and for a rate or a number of channels that is out of limits.
    """
    try:
        with _Forward(io.BytesIO(data)) as file:
            if file.format not in _KINDS:
                raise InvalidArgument(field, f"is a {file.format} file; give wav, flac, mp3 or ogg")
            check_rate(field, file.samplerate)
            check_channels(field, file.channels)
            yield file
    except soundfile.SoundFileError:
        # Its own words mislead: of a damaged mp3 they say that the file does not exist.
        raise InvalidArgument(
            field, "cannot be read as audio: it is damaged, or no wav, flac, mp3 or ogg that libsndfile knows"
        ) from None


def tells_more(file: soundfile.SoundFile, limit: int) -> bool:
    """Whether the header says that there are more than ``limit`` frames; of an MP3 it is an estimate."""
    return limit < file.frames < _UNKNOWN and file.format != "MP3"


def read_clip_file(field: str, data: bytes) -> ClipFile:
    """A file's bytes, looked at only as far as costs nothing. Raises InvalidArgument for what is none of the kinds."""
    check_file(field, data, MAX_FILE_BYTES)
    return ClipFile(field, data)


def check_file(field: str, data: bytes, limit: int) -> None:
    """Raise InvalidArgument for bytes above ``limit``, none, or a beginning of none of the kinds."""
    if len(data) > limit:
        raise InvalidArgument(field, f"is {len(data)} bytes long, the limit is {limit}")
    if not data:
        raise InvalidArgument(field, "is empty")
    if not _looks_like_audio(data):
        raise InvalidArgument(field, f"begins with the bytes {data[:4].hex(' ')}; wav, flac, mp3 and ogg do not")


def read_clip_samples(field: str, samples: NDArray[Any], channels: int, rate: int, wanted: ClipLimits) -> ClipSamples:
    """Samples float32 [n * channels]. Only what costs nothing is checked here: sizes, not values."""
    check_channels("reference_channels", channels)
    check_rate("reference_sample_rate", rate)
    if samples.ndim != 1 or samples.size % channels:
        raise InvalidArgument(field, f"has shape {list(samples.shape)}, expected [n * {channels}] samples")
    if samples.size == 0:
        raise InvalidArgument(field, "holds 0 samples")
    if samples.size // channels > int(wanted.max_seconds * rate):
        raise _too_long(field, samples.size / channels / rate, wanted)
    # A copy: the request's own memory is given back while it waits.
    return ClipSamples(field, np.array(samples), channels, rate)


def unwrap(field: str, data: bytes) -> bytes:
    """The file behind a data URI (``data:audio/wav;base64,...``), which is how JSON can carry one; else the bytes."""
    if not data.startswith(_DATA_URI):
        return data
    head, comma, _ = data[:128].partition(_BASE64)
    if not comma:
        raise InvalidArgument(field, "is a data URI without ;base64,")
    try:
        return base64.b64decode(data[len(head) + len(comma) :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(field, f"is a data URI that is not base64: {error}") from None


def check_rate(field: str, rate: int) -> None:
    """Raise InvalidArgument for a sampling rate that no recording has."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidArgument(field, f"{rate} samples a second is outside {MIN_RATE}...{MAX_RATE}")


def check_channels(field: str, channels: int) -> None:
    """Raise InvalidArgument unless the clip is mono or stereo."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise InvalidArgument(field, f"{channels} channels; a clip has 1 or {MAX_CHANNELS}")


def prepare(field: str, samples: NDArray[np.float32], rate: int, wanted: ClipLimits) -> NDArray[np.float32]:
    """Samples float32 [n, channels] at ``rate`` -> float32 [frames * hop * channels of the codec], as the encoder
    reads them: channels in turns."""
    seconds = len(samples) / rate
    if len(samples) > int(wanted.max_seconds * rate):
        raise _too_long(field, seconds, wanted)
    if seconds < MIN_SECONDS:
        raise InvalidArgument(
            field, f"lasts {seconds:.3g} s (samples: {len(samples)}); the shortest clip has {MIN_SECONDS:g} s"
        )
    peak = float(np.abs(samples).max())  # NaN if there is one
    if not np.isfinite(peak):
        raise InvalidArgument(field, "holds a sample that is not a finite number")
    if peak > MAX_PEAK:
        raise InvalidArgument(field, f"has a sample of {peak:g}, and full scale is 1")
    if peak < SILENCE_PEAK:
        raise InvalidArgument(field, f"is silent: no sample is above {SILENCE_PEAK:g} of full scale")
    if samples.shape[1] > wanted.channels:
        samples = samples.mean(axis=1, dtype=np.float32, keepdims=True)
    if rate != wanted.sampling_rate:
        samples = soxr.resample(np.ascontiguousarray(samples), rate, wanted.sampling_rate)
    samples = loudness(samples)[: wanted.max_frames * wanted.hop]  # rounding may add a sample or a part of a frame
    frames = -(-len(samples) // wanted.hop)
    padded = np.zeros((frames * wanted.hop, wanted.channels), dtype=np.float32)
    padded[: len(samples)] = samples  # one channel goes to both
    return padded.reshape(-1)


def loudness(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Float32 of any shape, nearer to -20 dBFS, by 3 dB at most."""
    level = 10.0 * np.log10(np.mean(np.square(samples, dtype=np.float64)) + 1e-9)
    gain = float(np.clip(_TARGET_DBFS - level, -_GAIN_DB, _GAIN_DB))
    return samples * np.float32(10.0 ** (gain / 20.0))


def _looks_like_audio(data: bytes) -> bool:
    """By its first bytes. An MP3 begins with a tag or with eleven set bits."""
    return (
        (data[:4] == b"RIFF" and data[8:12] == b"WAVE")
        or data[:4] in (b"fLaC", b"OggS")
        or data[:3] == b"ID3"
        or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0)
    )


def _too_long(field: str, seconds: float, wanted: ClipLimits) -> InvalidArgument:
    return InvalidArgument(field, f"lasts {seconds:.4g} s or more; the longest clip has {wanted.max_seconds:g} s")
