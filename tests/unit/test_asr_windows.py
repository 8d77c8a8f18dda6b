"""Cutting long audio: every sample once, in order, within the limits, at the quietest place."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.asr.log_mel import RATE
from backends.asr.windows import FRAME, Window, frame_energy, split


def noise(seconds: float, level: float = 0.1, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0.0, level, round(seconds * RATE)).astype(np.float32)


def silence(seconds: float) -> NDArray[np.float32]:
    return np.zeros(round(seconds * RATE), dtype=np.float32)


def check(windows: list[Window], samples: int, longest: float, shortest: float) -> None:
    assert [windows[0].start, *(window.end for window in windows)] == [*(window.start for window in windows), samples]
    assert all(0 < len(window) <= longest * RATE for window in windows)
    if len(windows) > 1:
        assert min(map(len, windows)) > shortest * RATE - FRAME


@pytest.mark.parametrize("seed", range(40))
def test_every_sample_once_and_no_window_beyond_the_limits(seed: int) -> None:
    """Signals of noise, silence, steps and tones; limits drawn too."""
    random = np.random.default_rng(seed)
    longest = float(random.choice([0.4, 0.987, 2.0, 8.0, 30.0]))
    parts = []
    for _ in range(random.integers(1, 12)):
        size = int(random.integers(1, int(longest * RATE)))
        kind = random.integers(4)
        if kind == 0:
            parts.append(np.zeros(size))
        elif kind == 1:
            parts.append(np.full(size, random.uniform(-1, 1)))
        elif kind == 2:
            parts.append(np.sin(np.arange(size) * random.uniform(0.01, 1.0)) * random.uniform(0, 1))
        else:
            parts.append(random.normal(0, 10.0 ** random.uniform(-6, 0), size))
    samples = np.concatenate(parts).astype(np.float32)
    before = samples.copy()
    check(split(samples, longest), len(samples), longest, longest / 3)
    shortest = float(random.uniform(0.1, longest / 2))
    windows = split(samples, longest, shortest)
    check(windows, len(samples), longest, shortest)
    assert windows == split(samples.copy(), longest, shortest) and np.array_equal(samples, before)


@pytest.mark.parametrize("samples", [1, FRAME - 1, FRAME, RATE, 30 * RATE - 1, 30 * RATE])
def test_what_fits_is_one_window(samples: int) -> None:
    assert split(noise(31)[:samples], 30.0) == [Window(0, samples)]
    assert split(np.zeros(samples, dtype=np.float32), 30.0) == [Window(0, samples, silent=True)]


def test_one_sample_too_many_makes_two_windows_of_some_length() -> None:
    windows = split(noise(31)[: 30 * RATE + 1], 30.0)
    assert len(windows) == 2 and min(map(len, windows)) >= 10 * RATE


def test_no_samples_no_window() -> None:
    assert split(np.zeros(0, dtype=np.float32), 30.0) == []


def test_cuts_lie_in_the_pauses() -> None:
    """Phrases of 7 s with pauses of 0.3 s, 30 dB below: each cut is well inside of one, and as late as it can be."""
    phrase, pause = noise(7.0), noise(0.3, level=0.003, seed=1)
    windows = split(np.concatenate([phrase, pause] * 12), 30.0)
    period = 7.3 * RATE
    # A window holds four phrases; three phrases are the least that ends in the last third of the reach.
    assert set(np.diff([0, *(round(window.end / period) for window in windows[:-1])])) <= {3, 4}
    for window in windows[:-1]:
        assert 7.1 * RATE <= window.end % period <= 7.2 * RATE


def test_an_early_pause_is_taken_where_there_is_no_late_one() -> None:
    samples = np.concatenate([noise(14.0), silence(0.4), noise(40.0, seed=1)])
    first = split(samples, 30.0)[0]
    assert first.end == pytest.approx(14.2 * RATE, abs=0.11 * RATE)


def test_a_late_pause_is_preferred_to_a_quieter_early_one() -> None:
    samples = np.concatenate([noise(14.0), silence(0.4), noise(10.0), noise(0.4, 0.002), noise(40.0, seed=1)])
    assert split(samples, 30.0)[0].end == pytest.approx(24.6 * RATE, abs=0.11 * RATE)


def test_the_cut_is_the_middle_of_digital_silence() -> None:
    samples = np.concatenate([noise(23.0), silence(4.0), noise(20.0)])
    # 100 ms on either side of a cut are silent too, so the places are 23.1 ... 26.9 s.
    assert split(samples, 30.0)[0].end == 25 * RATE


def test_long_silence_makes_windows_that_may_be_left_out() -> None:
    """Silence of a minute before, in and after speech; 16-bit noise counts as silence, faint speech does not."""
    for quiet in (silence(60.0), np.round(noise(60.0, level=0.5, seed=3)).clip(-1, 1) / np.float32(32768)):
        samples = np.concatenate([quiet, noise(20.0, 0.3), quiet, noise(20.0, 0.3), quiet])
        windows = split(samples, 30.0)
        check(windows, len(samples), 30.0, 10.0)
        spoken = (np.arange(len(samples)) // RATE % 80) >= 60
        assert all(window.silent != spoken[window.start : window.end].any() for window in windows)
        assert sum(window.silent for window in windows) >= 6
    faint = np.concatenate([noise(20.0, 0.3), noise(60.0, level=0.3e-3), noise(20.0, 0.3)])  # 60 dB below
    assert not any(window.silent for window in split(faint, 30.0))


def test_loudness_of_the_clip_changes_nothing() -> None:
    """Scaled by a power of two, all comparisons come out the same."""
    samples = np.concatenate([noise(25.0), silence(0.2), noise(60.0, 0.01, 1), silence(40.0), noise(3.0)])
    assert split(samples, 30.0) == split(samples * np.float32(2.0**-9), 30.0)


def test_energy_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = noise(3.0)[:-77]
    found = frame_energy(samples)
    padded = np.pad(samples.astype(np.float64), (0, 77)).reshape(-1, FRAME)
    wanted = np.square(padded).mean(axis=1)
    wanted[-1] *= FRAME / (FRAME - 77)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    monkeypatch.setattr("backends.asr.windows._BLOCK", 7)
    assert np.array_equal(frame_energy(samples), found)


def test_an_hour_needs_little_memory() -> None:
    samples = silence(3600.0)
    samples[:: 40 * RATE] = 0.5
    tracemalloc.start()
    try:
        windows = split(samples, 30.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    check(windows, len(samples), 30.0, 10.0)
    assert peak < 16 * 2**20, f"{peak / 2**20:.1f} MiB beside 220 MiB of samples"


@pytest.mark.parametrize(
    ("samples", "longest", "shortest", "word"),
    [
        (np.zeros((2, 800), dtype=np.float32), 30.0, None, r"shape \[2, 800\]"),
        (silence(1), 30.0, 15.1, "min_seconds: 15.1"),
        (silence(1), 30.0, 0.05, "min_seconds: 0.05"),
        (silence(1), 0.2, None, "min_seconds"),
        (silence(1), float("nan"), None, "min_seconds"),
        (np.array([0.0, np.nan], dtype=np.float32), 30.0, None, "finite"),
        (np.array([0.0, np.inf], dtype=np.float32), 30.0, None, "finite"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    samples: NDArray[np.float32], longest: float, shortest: float | None, word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        split(samples, longest, shortest)
