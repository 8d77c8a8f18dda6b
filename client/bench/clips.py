"""What is written down: the clips of a folder, or those that come with the repository."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client.duration import duration
from client.errors import InvalidArgument
from client.wav import HEADER_BYTES, wav_header

BUILT_IN = Path(__file__).resolve().parents[2] / "voices"
SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")
#: Of --length: silence between two clips, and how many recordings are made at most.
PAUSE_S, RECORDINGS = 0.5, 8


@dataclass(frozen=True)
class Clip:
    """The bytes of a file, and the length of its audio. ``rate``: of a 16-bit mono wav that was made here, else 0."""

    name: str
    data: bytes
    seconds: float
    rate: int = 0

    def marked(self, number: int) -> bytes:
        """The same recording but for four samples at the beginning of every second, which are below -60 dB of full
        scale and spell ``number``: to a server that keeps what it has heard, each of its windows is new. Only for a
        clip with a ``rate``."""
        samples = np.frombuffer(self.data, "<i2", offset=HEADER_BYTES).copy()
        for place in range(4):
            samples[place :: self.rate] = (number >> 5 * place & 31) - 16
        return self.data[:HEADER_BYTES] + samples.tobytes()


def read_clips(path: Path | None) -> tuple[Clip, ...]:
    """The recordings of a folder in the order of their names, one file, or (None) the built-in ones.

    Raises InvalidArgument when there are none, or one of them cannot be read or does not say how long it is.
    """
    where = BUILT_IN if path is None else path
    paths = sorted(one for one in where.iterdir() if one.suffix.lower() in SUFFIXES) if where.is_dir() else [where]
    if not paths or (path is None and not where.is_dir()):
        raise InvalidArgument(f"is needed: {where} holds no wav, flac, mp3 or ogg file", field="--clips")
    clips = []
    for one in paths:
        try:
            data = one.read_bytes()
        except OSError as error:
            raise InvalidArgument(
                f"the file {one} cannot be read ({error.strerror or error})", field="--clips"
            ) from None
        seconds = duration(data)
        if not seconds:
            raise InvalidArgument(
                f"the length of {one} cannot be known; give wav or flac, or install soundfile", field="--clips"
            )
        clips.append(Clip(one.name, data, seconds))
    return tuple(clips)


def as_wav(clips: Sequence[Clip], option: str) -> tuple[Clip, ...]:
    """The clips as 16-bit mono wav. Raises InvalidArgument naming ``option`` where soundfile is missing."""
    return tuple(_wav(clip.name, *_samples(clip, option)) for clip in clips)


def joined(clips: Sequence[Clip], seconds: float) -> tuple[Clip, ...]:
    """Recordings of ``seconds``: the clips one after another with pauses between, again and again, and cut there. The
    first begins with the first clip, the next with the second, up to RECORDINGS of them."""
    decoded = [_samples(clip, "--length") for clip in clips]
    rates = {rate for _, rate in decoded}
    if len(rates) > 1:
        raise InvalidArgument(
            f"needs clips of one sample rate; there are {', '.join(map(str, sorted(rates)))}", field="--length"
        )
    (rate,) = rates
    pause, wanted = np.zeros(round(PAUSE_S * rate), np.int16), round(seconds * rate)
    made = []
    for first in range(min(len(clips), RECORDINGS)):
        parts: list[np.ndarray] = []
        have = 0
        for samples, _ in itertools.islice(itertools.cycle(decoded), first, None):
            parts += [samples, pause]
            have += len(samples) + len(pause)
            if have >= wanted:
                break
        name = f"{seconds:g} s from {clips[first].name}"
        made.append(_wav(name, np.concatenate(parts)[:wanted], rate))
    return tuple(made)


def _samples(clip: Clip, option: str) -> tuple[np.ndarray, int]:
    """int16 [n] of one channel, and the sample rate."""
    try:
        import soundfile
    except (ImportError, OSError):
        raise InvalidArgument("needs the package soundfile", field=option) from None
    try:
        samples, rate = soundfile.read(io.BytesIO(clip.data), dtype="int16", always_2d=True)
    except RuntimeError:
        raise InvalidArgument(
            f"the file {clip.name} cannot be read as audio: it is damaged, or of a kind that libsndfile does not know",
            field="--clips",
        ) from None
    return samples[:, 0], int(rate)


def _wav(name: str, samples: Any, rate: int) -> Clip:
    data = samples.astype("<i2").tobytes()
    return Clip(name, wav_header(int(rate), len(data)) + data, len(samples) / rate, int(rate))
