"""Recorded human speech with its words, out of two Debian packages. None of it is part of this repository.

    mkdir speech && cd speech
    apt-get download pocketsphinx-testdata asterisk-core-sounds-en asterisk-core-sounds-en-g722
    for package in *.deb; do dpkg-deb -x $package .; done

*librivox*: five utterances of an audiobook in the public domain. *prompts*: what a telephone exchange says, spoken by
Allison Smith (CC BY-SA 3.0), G.722 at 16 kHz. Both are English.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

RATE = 16_000
_LIBRIVOX = "usr/share/pocketsphinx/test/data/librivox"
_SOUNDS = "usr/share/asterisk/sounds/en_US_f_Allison"
_WORDS = "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
#: Seconds of a prompt that is taken: long enough to hold words, short enough for one window of Whisper.
_SHORTEST, _LONGEST = 2.0, 30.0


@dataclass(frozen=True, slots=True)
class Clip:
    """``said``: its words, as written down by others. ``samples``: float32 [n], mono at 16 kHz."""

    name: str
    said: str
    samples: NDArray[np.float32]


def librivox(data: Path) -> list[Clip]:
    """The utterances in ``data``, where the packages were unpacked."""
    folder, clips = data / _LIBRIVOX, []
    for line in (folder / "transcription").read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"<s> (.*) </s> \((\S+)\)", line)
        if found is None:
            raise ValueError(f"{folder / 'transcription'}: {line!r} is no transcript")
        samples, rate = soundfile.read(folder / f"{found[2]}.wav", dtype="float32")
        if rate != RATE or samples.ndim != 1:
            raise ValueError(
                f"{found[2]}.wav: {rate} samples a second of shape {samples.shape}; {RATE} of [n] expected"
            )
        clips.append(Clip(found[2], found[1], samples))
    return clips


def prompts(data: Path, count: int) -> list[Clip]:
    """``count`` prompts of 2 to 30 s whose words are known, spread evenly over the alphabet of their names."""
    with gzip.open(data / _WORDS, "rt", encoding="utf-8") as file:
        lines = dict(line.strip().split(": ", 1) for line in file if ": " in line and not line.startswith(";"))
    fit = []
    for name, said in sorted(lines.items()):
        path = data / _SOUNDS / f"{name}.g722"
        # G.722 takes 8000 bytes a second. Words in brackets describe a sound.
        if path.is_file() and _SHORTEST < path.stat().st_size / 8000 <= _LONGEST and "[" not in said:
            fit.append((name, said, path))
    if len(fit) < count:
        raise ValueError(f"{data / _SOUNDS}: {len(fit)} prompts fit, {count} were asked for")
    chosen = [fit[index * len(fit) // count] for index in range(count)]
    return [Clip(name, said, read_g722(path)) for name, said, path in chosen]


def read_g722(path: Path) -> NDArray[np.float32]:
    """Samples float32 [n] at 16 kHz of a file that holds nothing but G.722 at 64 kbit/s."""
    import av  # brought by faster-whisper, of the extra "judge"

    with av.open(str(path), format="g722") as container:
        pcm = np.concatenate([frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)])
    return pcm.astype(np.float32) / np.float32(32768)
