"""Voices with a name: files ``NAME.wav`` (flac, mp3, ogg) in a folder, each with an optional ``NAME.txt``.

All are read when the stage loads, so that a broken file stops the load with its name. They are encoded at the first
request, which is the canary under serve.py: while the stages load, the encoder may not be there yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.encoder.clip import ClipLimits
from backends.errors import InvalidArgument
from backends.voices.clip import read_clip_file

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class NamedVoice:
    """``samples`` are ready for the encoder. ``text``: what the clip says, or None."""

    name: str
    samples: NDArray[np.float32]
    text: str | None

    def parts(self) -> tuple[bytes, ...]:
        """What makes this clip differ from others, for its key."""
        return (b"named", self.samples.tobytes())

    def prepare(self, wanted: ClipLimits) -> NDArray[np.float32]:
        """The samples, float32 [frames * hop * channels]."""
        return self.samples


def load_voices(folder: Path, wanted: ClipLimits, where: str) -> dict[str, NamedVoice]:
    """The voices of ``folder`` by name, in order. ``where``: the parameter that errors name.

    Raises InvalidArgument naming the file that is no clip, has a name that cannot be asked for, or shares it.
    """
    if not folder.is_dir():
        raise InvalidArgument(where, f"{folder} is not a folder; without named voices give an empty one")
    voices: dict[str, NamedVoice] = {}
    texts = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            continue
        if not _NAME.fullmatch(path.stem):
            raise InvalidArgument(where, f"{path}: a voice's name has letters, digits, - and _ only, 64 at most")
        if path.stem in voices:
            raise InvalidArgument(where, f"{path}: another file of this folder has the same name")
        voices[path.stem] = NamedVoice(path.stem, _read(path, wanted, where), _text(texts.pop(path.stem, None), where))
    for path in texts.values():
        raise InvalidArgument(where, f"{path}: there is no clip of this name beside it")
    return voices


def _read(path: Path, wanted: ClipLimits, where: str) -> NDArray[np.float32]:
    try:
        return read_clip_file(str(path), path.read_bytes()).prepare(wanted)
    except InvalidArgument as error:
        raise InvalidArgument(where, f"{error.field}: {error.problem}") from None
    except OSError as error:
        raise InvalidArgument(where, f"{path}: {error.strerror}") from None


def _text(path: Path | None, where: str) -> str | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(where, f"{path}: {error}") from None
    if not text or "\0" in text:
        raise InvalidArgument(where, f"{path}: {'holds a NUL character' if text else 'is empty'}")
    return text
