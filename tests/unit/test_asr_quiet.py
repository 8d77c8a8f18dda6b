"""Audio without words: what tiny.en makes of it is what transformers makes of it; silence alone may be left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.asr.default_checkpoint import default_checkpoint
from backends.asr.windows import split
from benchmarks.asr_engines import RATE, InProcess, Reference, Samples
from tests.conftest import ROOT


def noise(seconds: float, level: float) -> Samples:
    return np.random.default_rng(5).normal(0.0, level, round(seconds * RATE)).astype(np.float32)


def chord(seconds: float, *hertz: float) -> Samples:
    """Struck twice a second and fading."""
    at = np.arange(round(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * each * at) for each in hertz)
    return (0.2 * tones * np.exp(-6.0 * (at % 0.5))).astype(np.float32)


#: Name -> samples, and whether :func:`split` calls them silent.
CLIPS: dict[str, tuple[Samples, bool]] = {
    "one sample of nothing": (np.zeros(1, dtype=np.float32), True),
    "one sample of full scale": (np.ones(1, dtype=np.float32), False),
    "a frame less one": (noise(1.0, 0.1)[:159], False),
    "silence of 1 s": (np.zeros(RATE, dtype=np.float32), True),
    "silence of 30 s": (np.zeros(30 * RATE, dtype=np.float32), True),
    "faint noise": (noise(3.0, 1e-4), False),
    "loud noise": (noise(5.0, 0.3), False),
    "a click": (np.eye(1, 2 * RATE, RATE, dtype=np.float32)[0], False),
    "a constant": (np.full(RATE, 0.5, dtype=np.float32), False),
    "a chord": (chord(4.0, 220.0, 277.2, 329.6), False),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return default_checkpoint(tmp_path_factory.mktemp("root"))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[InProcess]:
    torch.set_num_threads(1)
    engine = InProcess(folder, running=len(CLIPS))
    yield engine
    engine.close()


def test_texts_equal_those_of_transformers(folder: Path, ours: InProcess) -> None:
    clips = [samples for samples, _ in CLIPS.values()]
    wanted = Reference(folder).write(clips)
    for name, text in zip(CLIPS, wanted, strict=True):
        print(f"{name:26s} {text!r}")
    assert dict(zip(CLIPS, ours.write(clips, len(clips)), strict=True)) == dict(zip(CLIPS, wanted, strict=True))


def test_readme_says_what_silence_gives(ours: InProcess) -> None:
    (said,) = set(ours.write([CLIPS["silence of 1 s"][0], CLIPS["silence of 30 s"][0]], 2))
    assert f'Whisper tiny.en may write "{said}"' in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CLIPS)
def test_only_digital_silence_is_called_silent(name: str) -> None:
    samples, silent = CLIPS[name]
    assert [window.silent for window in split(samples, 30.0)] == [silent]
