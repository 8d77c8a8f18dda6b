"""What a listener would notice: first-chunk latency, gaps, speed, and silence in the middle. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Playback:
    """Timings of one stream. All times are in seconds.

    With a_i the arrival of the i-th chunk that holds audio, d_i its length, and t_0 the start of the request:

    first_chunk_s     a_0 − t_0
    gaps_s            a_i − a_(i−1) for i ≥ 1
    audio_s           Σ d_i
    total_s           (last arrival, of an empty last chunk too) − t_0
    real_time_factor  total_s / audio_s; below 1 is faster than it plays; inf when there is no audio
    underrun_s        max(0, max_i (a_i − a_0 − Σ_{j<i} d_j))

    ``underrun_s`` is how long a player that starts at the first chunk stays silent in the middle, all stalls added:
    after a stall the rest of the schedule moves by it, so the sum of the stalls is the largest lateness against the
    unmoved schedule. It is also how much later a player must start to never run dry. The end of the stream is no stall.
    """

    chunks: int
    first_chunk_s: float
    gaps_s: tuple[float, ...]
    audio_s: float
    total_s: float
    underrun_s: float

    @property
    def worst_gap_s(self) -> float:
        """The longest gap, 0 for a single chunk."""
        return max(self.gaps_s, default=0.0)

    @property
    def real_time_factor(self) -> float:
        return self.total_s / self.audio_s if self.audio_s > 0 else math.inf


def measure(started_at: float, arrivals: Sequence[float], samples: Sequence[int], sample_rate: int) -> Playback:
    """Timings from the arrival (seconds) and the length (samples) of every chunk, in order.

    Empty chunks count in ``chunks`` and ``total_s`` alone: there is nothing in them to hear. Without any audio
    ``first_chunk_s`` is the latency of the first chunk, and nan when no chunk came at all.
    Raises ValueError when the two sequences differ in length or the rate is not positive.
    """
    if len(arrivals) != len(samples):
        raise ValueError(f"{len(arrivals)} arrivals and {len(samples)} lengths: there must be one length an arrival")
    if sample_rate <= 0 and any(samples):
        raise ValueError(f"sample_rate is {sample_rate}; it must be above 0")
    heard = [(at, n / sample_rate) for at, n in zip(arrivals, samples, strict=True) if n > 0]
    if not arrivals:
        return Playback(0, math.nan, (), 0.0, 0.0, 0.0)
    first = heard[0][0] if heard else arrivals[0]
    played, late = 0.0, 0.0
    for at, seconds in heard:
        late = max(late, at - first - played)
        played += seconds
    return Playback(
        chunks=len(arrivals),
        first_chunk_s=first - started_at,
        gaps_s=tuple(later[0] - earlier[0] for earlier, later in zip(heard, heard[1:], strict=False)),
        audio_s=played,
        total_s=arrivals[-1] - started_at,
        underrun_s=late,
    )
