"""Long audio into windows that a model can hear, cut where it is quietest.

The rule is that of least short-time energy: of all places that a cut may have, the middle of the 200 ms with the least
energy. A place is a multiple of 10 ms. NumPy only, so that a prompt stage needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backends.asr.log_mel import RATE

#: Samples of a frame: 10 ms. Cuts lie between frames.
FRAME = 160
#: Frames on each side of a cut whose energy is counted.
_SIDE = 10
#: Frames taken at a time, 40 s: what is held in double precision at once.
_BLOCK = 4000
#: A place is a pause when it is 20 dB below the mean of the audio in reach.
_PAUSE = 1e-2
#: Log-mel spectrograms are clipped 80 dB below their loudest value (:func:`backends.asr.log_mel.log_mel`).
_UNHEARD = 1e-8
_MIN_SECONDS = FRAME * _SIDE / RATE


@dataclass(frozen=True, slots=True)
class Window:
    """Samples ``start`` ... ``end - 1`` of a clip.

    silent   no 10 ms of it come within 80 dB of the loudest of the clip. In one window with those, the front end would
             clip about all of it away, and 16 bits hold hardly more than their own noise down there. So leaving such a
             window out loses no word that was said, only words that a model may invent for silence.
    """

    start: int
    end: int
    silent: bool = False

    def __len__(self) -> int:
        return self.end - self.start


def split(samples: NDArray[np.float32], max_seconds: float, min_seconds: float | None = None) -> list[Window]:
    """``samples`` float32 [n], mono at 16 kHz -> windows in order: from 0 to n, without gap or overlap.

    No window is longer than ``max_seconds``, and where there are several, none is shorter than ``min_seconds`` (to
    10 ms; at least 0.1, at most half of the longest; by default a third). Audio that fits is one window. Otherwise a
    cut is looked for in the last third of the reach first, because a window costs the same whatever it holds; where no
    pause is in there, in all of the reach. Among equally quiet places, as in digital silence, the cut is in the middle
    of the last stretch of them.

    The same samples give the same windows. Time is linear in n; beside the samples, 5 bytes for every 100 of them are
    held. Raises ValueError for another shape, a value that is not finite, or limits that do not go together.
    """
    shortest = max_seconds / 3 if min_seconds is None else min_seconds
    if samples.ndim != 1:
        raise ValueError(f"samples of shape {list(samples.shape)}: one channel is expected, [n]")
    if not _MIN_SECONDS <= shortest <= max_seconds / 2:
        raise ValueError(f"min_seconds: {shortest:g} is outside {_MIN_SECONDS:g} ... {max_seconds / 2:g}")
    if not len(samples):
        return []
    energy = frame_energy(samples)
    loudest = float(energy.max())  # NaN if there is one
    if not np.isfinite(loudest):
        raise ValueError("samples hold a value that is not a finite number")
    longest = int(max_seconds * RATE)
    cuts = [0]
    while len(samples) - cuts[-1] > longest:
        cuts.append(FRAME * _cut(energy, cuts[-1] // FRAME, len(samples), longest // FRAME, shortest))
    cuts.append(len(samples))
    return [
        Window(start, end, not bool(np.any(energy[start // FRAME : -(-end // FRAME)] > _UNHEARD * loudest)))
        for start, end in zip(cuts[:-1], cuts[1:], strict=True)
    ]


def frame_energy(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean square of every 10 ms of ``samples`` float32 [n]: float64 [ceil(n / 160)]; the last of what there is."""
    whole = len(samples) // FRAME
    out = np.empty(-(-len(samples) // FRAME), dtype=np.float64)
    for first in range(0, whole, _BLOCK):
        last = min(first + _BLOCK, whole)
        block = samples[first * FRAME : last * FRAME].reshape(-1, FRAME).astype(np.float64)
        out[first:last] = np.einsum("fs,fs->f", block, block) / FRAME
    if whole < len(out):
        out[whole] = np.mean(np.square(samples[whole * FRAME :], dtype=np.float64))
    return out


def _cut(energy: NDArray[np.float64], start: int, samples: int, longest: int, min_seconds: float) -> int:
    """Where the window ends that begins with frame ``start``: a frame. ``longest`` is in frames."""
    shortest = min(-(-int(np.ceil(min_seconds * RATE)) // FRAME), longest // 2)
    low, high = start + shortest, min(start + longest, samples // FRAME - shortest)
    # Sums of 200 ms around every place. Not from a running sum: that would not give equal places equal numbers.
    around = np.lib.stride_tricks.sliding_window_view(energy[low - _SIDE : high + _SIDE], 2 * _SIDE).sum(axis=1)
    late = max(0, start + 2 * longest // 3 - low)
    pause = _PAUSE * 2 * _SIDE * float(energy[start : start + longest].mean())
    if late < len(around) and around[late:].min() <= pause:
        return low + late + _quietest(around[late:])
    return low + _quietest(around)


def _quietest(sums: NDArray[np.float64]) -> int:
    """The middle of the last stretch of the smallest values."""
    places = np.flatnonzero(sums == sums.min())
    last = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)[-1]
    return int(last[len(last) // 2])
