"""What a request wants to be heard: a file or samples of any rate -> mono samples at 16 kHz.

Read in blocks, so that beside the result no more than a block is held, whatever rate and channels the audio has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from backends.asr.log_mel import RATE
from backends.errors import InvalidArgument
from backends.fields import Number, read_bytes
from backends.voices.clip import (
    MAX_CHANNELS,
    MAX_PEAK,
    MAX_RATE,
    MIN_RATE,
    MIN_SECONDS,
    check_file,
    open_clip,
    tells_more,
    unwrap,
)

AUDIO_INPUTS = ("audio_file", "audio", "sample_rate", "channels")
_RATE, _CHANNELS = Number("sample_rate", MIN_RATE, MAX_RATE), Number("channels", 1, MAX_CHANNELS)
_BLOCK = 1 << 18

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Recording:
    """A file's bytes, or samples float32 [n, channels] at ``rate``; the other is None."""

    field: str
    data: bytes | None
    samples: Samples | None = None
    rate: int = 0

    def load(self, max_seconds: float) -> Samples:
        """Mono float32 [n] at 16 kHz, the mean of the channels. Raises InvalidArgument for audio that cannot be read,
        is too long or too short, or holds what is no sample.
        """
        if self.data is None:
            assert self.samples is not None
            return self._resampled(self._cut(self.samples), self.rate, max_seconds)
        with open_clip(self.field, self.data) as file:
            if tells_more(file, int(max_seconds * file.samplerate)):
                raise self._too_long(max_seconds, file.frames / file.samplerate)
            return self._resampled(self._read(file), file.samplerate, max_seconds)

    @staticmethod
    def _read(file: soundfile.SoundFile) -> Iterator[Samples]:
        while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
            yield block

    @staticmethod
    def _cut(samples: Samples) -> Iterator[Samples]:
        for start in range(0, len(samples), _BLOCK):
            yield samples[start : start + _BLOCK]

    def _resampled(self, blocks: Iterator[Samples], rate: int, max_seconds: float) -> Samples:
        """``blocks`` float32 [n, channels] at ``rate``."""
        stream = soxr.ResampleStream(rate, RATE, 1, dtype="float32") if rate != RATE else None
        out, count, limit = list[Samples](), 0, int(max_seconds * rate)
        for block in blocks:
            count += len(block)
            if count > limit:
                raise self._too_long(max_seconds, count / rate)
            mono = block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)
            self._check(block)
            out.append(np.array(mono) if stream is None else stream.resample_chunk(np.ascontiguousarray(mono)))
        if count < MIN_SECONDS * rate:
            raise InvalidArgument(
                self.field,
                f"lasts {count / rate:.3g} s (samples: {count}); the shortest audio has {MIN_SECONDS:g} s",
            )
        if stream is not None:
            out.append(stream.resample_chunk(np.zeros(0, dtype=np.float32), last=True))
        return np.concatenate(out)

    def _check(self, block: Samples) -> None:
        peak = float(np.abs(block).max())  # NaN if there is one
        if not np.isfinite(peak):
            raise InvalidArgument(self.field, "holds a sample that is not a finite number")
        if peak > MAX_PEAK:
            raise InvalidArgument(self.field, f"has a sample of {peak:g}, and full scale is 1")

    def _too_long(self, max_seconds: float, seconds: float) -> InvalidArgument:
        return InvalidArgument(
            self.field,
            f"lasts {seconds:.4g} s or more; the longest audio has {max_seconds:g} s (asr_prompt.max_seconds)",
        )


def read_recording(tensors: Mapping[str, NDArray[Any] | None], max_seconds: float, max_file_bytes: int) -> Recording:
    """The audio behind the input tensors; only what costs nothing is looked at. Raises InvalidArgument."""
    file, samples = tensors["audio_file"], tensors["audio"]
    if file is not None and samples is not None:
        raise InvalidArgument("audio", "and audio_file are two recordings; give one")
    rate, channels = _RATE.read(tensors["sample_rate"]), int(_CHANNELS.read(tensors["channels"]) or 1)
    if samples is None:
        for name in ("sample_rate", "channels"):
            if tensors[name] is not None:
                raise InvalidArgument(name, f"has no meaning {'beside audio_file' if file is not None else 'alone'}")
        if file is None:
            raise InvalidArgument("audio", "is missing; give audio (samples) or audio_file (a file's bytes)")
        data = unwrap("audio_file", read_bytes("audio_file", file))
        check_file("audio_file", data, max_file_bytes)
        return Recording("audio_file", data)
    if rate is None:
        raise InvalidArgument("sample_rate", "is missing; audio does not say it")
    if samples.dtype != np.float32:
        raise InvalidArgument("audio", f"is of type {samples.dtype}, expected float32")
    if samples.ndim != 1 or samples.size % channels:
        raise InvalidArgument("audio", f"has shape {list(samples.shape)}, expected [n * {channels}] samples")
    if samples.size == 0:
        raise InvalidArgument("audio", "holds 0 samples")
    recording = Recording("audio", None, rate=int(rate))
    if samples.size // channels > int(max_seconds * rate):
        raise recording._too_long(max_seconds, samples.size / channels / rate)
    # A copy: the request's own memory is given back while it waits.
    return Recording("audio", None, np.array(samples).reshape(-1, channels), int(rate))
