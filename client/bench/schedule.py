"""When the requests of an open loop arrive: fixed before the first one goes out, whatever the server then does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

ARRIVALS = ("poisson", "constant")


def arrival_times(
    rate: float, seconds: float | None, count: int | None, arrivals: str = "poisson", seed: int = 0
) -> list[float]:
    """Ascending times in seconds from the start.

    rate      requests a second, above 0
    seconds   only times below this; None: no limit
    count     only so many; None: no limit
    arrivals  ``poisson``: independent exponential gaps of mean 1/rate, drawn with ``seed``; ``constant``: i/rate

    Raises ValueError for a rate that is not above 0, no limit at all, or an unknown ``arrivals``.
    """
    if not rate > 0:
        raise ValueError(f"rate is {rate}; it must be above 0")
    if seconds is None and count is None:
        raise ValueError("neither seconds nor count is given; the schedule would never end")
    if arrivals not in ARRIVALS:
        raise ValueError(f"arrivals is {arrivals!r}; use {' or '.join(ARRIVALS)}")
    times = _poisson(rate, seed) if arrivals == "poisson" else (i / rate for i in itertools.count())
    if seconds is not None:
        times = itertools.takewhile(lambda at: at < seconds, times)
    return list(itertools.islice(times, count))


def _poisson(rate: float, seed: int) -> Iterator[float]:
    draw = random.Random(seed)
    at = 0.0
    while True:
        at += draw.expovariate(rate)
        yield at
