"""Log-mel spectrograms: what the encoders of Whisper and Qwen3-ASR read. NumPy only, so a prompt stage needs no torch.

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
    padded = np.pad(np.pad(samples.astype(np.float64), (0, heard - len(samples))), WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][: frame_count(heard)]
    power = np.abs(np.fft.rfft(frames * _hann())) ** 2
    found = np.log10(np.maximum(mel_filters(mels) @ power.T, _FLOOR))
    out = np.full((mels, frame_count(length)), np.log10(_FLOOR))
    out[:, : found.shape[1]] = found
    return ((np.maximum(out, out.max(initial=np.log10(_FLOOR)) - 8.0) + 4.0) / 4.0).astype(np.float32)


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
