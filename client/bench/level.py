"""The sum of one level of load."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from client.bench.distribution import Distribution, distribution
from client.bench.record import Record
from client.bench.stages import Breakdown, breakdown

UNDERRUNS_S = (0.0, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Underrun:
    """Streams whose playback ran dry. ``shares``: by threshold in seconds, the share (0 … 1) of the ``n`` streams with
    audio that were silent for longer than that in the middle; ``worst`` in seconds. None when n is 0."""

    n: int
    shares: dict[float, float | None]
    worst: float | None


@dataclass(frozen=True)
class Level:
    """One level, summed up. Latencies of finished requests only, in seconds from the time they were due.

    label            ``c=4`` or ``2.5/s``
    offered          requests a second of an open loop's schedule; None for a closed loop
    window           seconds that the rates are taken over: the time in which requests were sent, when that was set;
                     else until the last one ended
    started          requests sent; each is in ``finished``, ``errors`` or ``unfinished`` (cut off by Ctrl-C)
    errors           by kind: how many, and how long after it was due the error came
    lost             those of the errors that never had an end from the server
    skipped          arrivals of an open loop that were not sent because of --max-outstanding
    finish_reasons   of the finished ones
    requests_per_s   ended within the window
    audio_per_s      seconds of audio that arrived within the window, over its length
    in_flight        mean number of requests inside
    send_delay       due → sent: what the client itself was late by; open loop only
    client_cpu       CPU seconds of this process over wall seconds
    metrics          growth of the server's counters; None when they could not be read
    """

    label: str
    offered: float | None
    window: float
    started: int
    finished: int
    errors: dict[str, Distribution]
    lost: int
    skipped: int
    unfinished: int
    finish_reasons: dict[str, int]
    requests_per_s: float
    audio_per_s: float
    in_flight: float
    first_chunk: Distribution
    gap: Distribution
    real_time_factor: Distribution
    send_delay: Distribution
    underrun: Underrun
    stages: Breakdown | None
    client_cpu: float
    metrics: dict[str, float] | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        found["underrun"]["shares"] = {f"{1000 * over:.0f} ms": s for over, s in self.underrun.shares.items()}
        return found


def summarise(
    label: str,
    records: Sequence[Record],
    *,
    started: int,
    skipped: int = 0,
    offered: float | None = None,
    window: float | None = None,
    client_cpu: float = 0.0,
    metrics: dict[str, float] | None = None,
) -> Level:
    """Sum up the records of one level. ``window`` in seconds; None: until the last request ended."""
    if window is None:
        window = max((record.ended for record in records), default=0.0)
    done = [record for record in records if record.ok]
    heard = [record.playback for record in done if record.playback.audio_s > 0]
    failed = [record for record in records if not record.ok]

    def rate(amount: float) -> float:
        return amount / window if window > 0 else 0.0

    return Level(
        label=label,
        offered=offered,
        window=window,
        started=started,
        finished=len(done),
        errors={
            kind: distribution(record.ended - record.due for record in failed if record.kind == kind)
            for kind in sorted({record.kind for record in failed})
        },
        lost=sum(record.lost for record in failed),
        skipped=skipped,
        unfinished=started - len(records),
        finish_reasons=dict(sorted(Counter(record.finish_reason for record in done).items())),
        requests_per_s=rate(sum(record.ended <= window for record in done)),
        audio_per_s=rate(math.fsum(record.audio_until(window) for record in done)),
        in_flight=rate(math.fsum(max(0.0, min(r.ended, window) - min(r.sent, window)) for r in records)),
        first_chunk=distribution(play.first_chunk_s for play in heard),
        gap=distribution(gap for play in heard for gap in play.gaps_s),
        real_time_factor=distribution(play.real_time_factor for play in heard),
        send_delay=distribution(record.sent - record.due for record in records if offered is not None),
        underrun=underrun([play.underrun_s for play in heard]),
        stages=breakdown(records),
        client_cpu=client_cpu,
        metrics=metrics,
    )


def underrun(seconds: Sequence[float]) -> Underrun:
    """Shares of streams that ran dry, from each stream's silence in seconds (``Playback.underrun_s``)."""
    n = len(seconds)
    shares = {over: sum(one > over for one in seconds) / n if n else None for over in UNDERRUNS_S}
    return Underrun(n, shares, max(seconds, default=None))
