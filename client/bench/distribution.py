"""Percentiles, with the number of samples they stand on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

METHOD = (
    "linear interpolation between order statistics at rank (n-1)q (Hyndman and Fan 1996, type 7); "
    "a percentile needs at least 1/(1-q) samples: p50 2, p95 20, p99 100"
)


@dataclass(frozen=True)
class Distribution:
    """Summary of n samples, in their unit. None where there are too few samples to say."""

    n: int
    mean: float | None
    least: float | None
    most: float | None
    p50: float | None
    p95: float | None
    p99: float | None


def percentile(ordered: list[float], q: float) -> float:
    """The q-quantile of ascending samples, 0 ≤ q ≤ 1. See METHOD. Raises ValueError for none, or a q out of range."""
    if not ordered:
        raise ValueError("there are no samples; a percentile needs at least one")
    if not 0 <= q <= 1:
        raise ValueError(f"q is {q}; it must be between 0 and 1")
    rank = (len(ordered) - 1) * q
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def distribution(samples: Iterable[float]) -> Distribution:
    """Summarise finite samples, in any order."""
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        return Distribution(0, None, None, None, None, None, None)

    def tail(hundredths: int) -> float | None:
        # n(1-q) ≥ 1 in whole numbers: fewer samples have none beyond the percentile, so it would be the maximum.
        return percentile(ordered, hundredths / 100) if n * (100 - hundredths) >= 100 else None

    return Distribution(n, math.fsum(ordered) / n, ordered[0], ordered[-1], tail(50), tail(95), tail(99))
