"""The long-term spectrum of speech where voices have their pitch: who speaks, whatever is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_WINDOW, _HOP, _BANDS = 4096, 1024, 20
#: Hz. Above, it is more about the sounds of the sentence, and the demo codec renders them alike for every voice.
_LOW, _HIGH = 60.0, 400.0
#: Windows with less energy than this share of the loudest are pauses.
_PAUSE = 1e-3


def long_term_spectrum(audio: np.ndarray[Any, Any], rate: int) -> np.ndarray[Any, Any]:
    """Decibels by mel band, mean 0: the level does not count."""
    windows = np.lib.stride_tricks.sliding_window_view(audio, _WINDOW)[::_HOP] * np.hanning(_WINDOW)
    power = np.abs(np.fft.rfft(windows)) ** 2
    energy = power.sum(axis=1)
    mean = power[energy > _PAUSE * energy.max()].mean(axis=0)
    hertz = np.fft.rfftfreq(_WINDOW, 1 / rate)
    edges = np.linspace(_mel(np.array(_LOW)), _mel(np.array(_HIGH)), _BANDS + 1)
    band = np.digitize(_mel(hertz), edges)
    levels = [10 * np.log10(mean[band == each].mean()) for each in range(1, _BANDS + 1) if (band == each).any()]
    return np.array(levels) - np.mean(levels)


def distances(
    audio: np.ndarray[Any, Any], references: Mapping[str, np.ndarray[Any, Any]], rate: int
) -> dict[str, float]:
    """Root mean square difference in decibels to each reference."""
    own = long_term_spectrum(audio, rate)
    return {
        name: float(np.sqrt(np.mean((own - long_term_spectrum(other, rate)) ** 2)))
        for name, other in references.items()
    }


def _mel(hertz: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 2595 * np.log10(1 + hertz / 700)
