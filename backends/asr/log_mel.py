"""Log-mel spectrograms: what the encoders of Whisper and Qwen3-ASR read. NumPy only, so a prompt stage needs no torch.

No matrix product either: NumPy's would start a thread for every core, and many windows are computed at a time.

The front end of Whisper (Radford et al. 2022): 16 kHz, windows of 400 samples (Hann) every 160, power spectrum, mel
filters of Slaney's Auditory Toolbox (1998) scaled to unit area, log10, clipped to 8 decades below the loudest value,
shifted and scaled to about -1 ... 1.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RATE, WINDOW, HOP = 16_000, 400, 160
_FLOOR = 1e-10
#: Frames at a time: what is held of them stays in a core's cache.
_BLOCK = 160
# Slaney's mel scale: linear up to 1000 Hz (15 mels), then 27 mels to a factor of 6.4.
_LINEAR_HZ, _BREAK_HZ, _BREAK_MEL, _STEP = 200.0 / 3.0, 1000.0, 15.0, np.log(6.4) / 27.0


def frame_count(samples: int) -> int:
    """Frames of so many samples: one for every whole hop."""
    return samples // HOP


def log_mel(samples: NDArray[np.float32], mels: int, pad_to: int = 0) -> NDArray[np.float32]:
    """Mono ``samples`` at 16 kHz, float32 [n], -1 ... 1 -> float32 [mels, frames].

    ``pad_to``: silence is added at the end up to so many samples. The edges are mirrored, so at least 201 samples are
    needed, silence included. Frames that lie in the added silence are known and not computed. Raises ValueError for
    fewer samples, or more than ``pad_to``.
    """
    length = pad_to or len(samples)
    if length <= WINDOW // 2 or len(samples) > length:
        raise ValueError(f"{len(samples)} samples padded to {length}: at least {WINDOW // 2 + 1} are needed")
    # Past the audio one window may still hold some of it; what is behind that one is silence.
    heard = min(length, -(-(len(samples) + WINDOW) // HOP) * HOP)
    # By hand: np.pad and sliding_window_view are Python, and whoever computes holds up all other threads with that.
    padded = np.zeros(heard + WINDOW)
    inner = padded[WINDOW // 2 : WINDOW // 2 + heard]
    inner[: len(samples)] = samples
    padded[: WINDOW // 2], padded[WINDOW // 2 + heard :] = (
        inner[WINDOW // 2 : 0 : -1],
        inner[-2 : -WINDOW // 2 - 2 : -1],
    )
    stride = padded.strides[0]
    frames = np.lib.stride_tricks.as_strided(padded, (frame_count(heard), WINDOW), (HOP * stride, stride))
    power = np.empty((WINDOW // 2 + 1, len(frames)))
    for first in range(0, len(frames), _BLOCK):
        spectrum = np.fft.rfft(frames[first : first + _BLOCK] * _hann()).T
        part = power[:, first : first + _BLOCK]
        np.square(spectrum.real, out=part)
        part += np.square(spectrum.imag)
    found = _through_filters(power, mels)
    out = np.full((mels, frame_count(length)), np.log10(_FLOOR))
    out[:, : len(frames)] = np.log10(np.maximum(found, _FLOOR, out=found), out=found)
    return ((np.maximum(out, out.max(initial=np.log10(_FLOOR)) - 8.0) + 4.0) / 4.0).astype(np.float32)


def _through_filters(power: NDArray[np.float64], mels: int) -> NDArray[np.float64]:
    """Power float64 [201, frames] through :func:`mel_filters`: float64 [mels, frames].

    A filter is a few bins wide; first of all the first bin, then of those that have more the second, and so on. Each
    frame is summed by itself.
    """
    order, steps = _steps(mels)
    out, part = np.zeros((mels, power.shape[1])), np.empty((mels, power.shape[1]))
    for bins, weights in steps:
        some = np.take(power, bins, axis=0, out=part[: len(bins)], mode="clip")  # the other modes copy first
        some *= weights
        out[: len(bins)] += some
    return out[order]


@lru_cache(maxsize=4)
def _steps(mels: int) -> tuple[NDArray[np.int64], list[tuple[NDArray[np.int64], NDArray[np.float64]]]]:
    """Filters from the widest to the narrowest, as the place of each in that order; and for the n-th bin of those that
    have so many, which bin it is and its weight [filters, 1].
    """
    filters = mel_filters(mels)
    widths = np.count_nonzero(filters, axis=1)
    widest = np.argsort(-widths, kind="stable")
    steps = []
    for place in range(widths.max()):
        some = widest[widths[widest] > place]
        bins = np.array([np.flatnonzero(filters[each])[place] for each in some])
        steps.append((bins, filters[some, bins][:, None]))
    return np.argsort(widest), steps


@lru_cache(maxsize=4)
def mel_filters(mels: int) -> NDArray[np.float64]:
    """Triangles on the mel scale between 0 and 8000 Hz, each of unit area: float64 [mels, 201]."""
    edges = _to_hz(np.linspace(0.0, _to_mel(RATE / 2.0), mels + 2))
    bins = np.linspace(0.0, RATE / 2.0, WINDOW // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None])


def _to_mel(hertz: float) -> float:
    if hertz < _BREAK_HZ:
        return hertz / _LINEAR_HZ
    return _BREAK_MEL + float(np.log(hertz / _BREAK_HZ)) / _STEP


def _to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < _BREAK_MEL, mel * _LINEAR_HZ, _BREAK_HZ * np.exp(_STEP * (mel - _BREAK_MEL)))


@lru_cache(maxsize=1)
def _hann() -> NDArray[np.float64]:
    """Periodic Hann window."""
    return 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(WINDOW) / WINDOW)
