"""The sum of one level of load: what is counted of every kind of request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from client.bench.distribution import Distribution, distribution
from client.bench.record import Record
from client.bench.stages import Breakdown, Stages, breakdown


@dataclass(frozen=True)
class Tally:
    """How a level was run, beside its records.

    label       ``c=4`` or ``2.5/s``
    started     requests sent
    skipped     arrivals of an open loop that were not sent because of --max-outstanding
    offered     requests a second of an open loop's schedule; None for a closed loop
    window      seconds that the rates are taken over; None: until the last request ended
    client_cpu  CPU seconds of this process over wall seconds
    metrics     growth of the server's counters; None when they could not be read
    """

    label: str
    started: int
    skipped: int = 0
    offered: float | None = None
    window: float | None = None
    client_cpu: float = 0.0
    metrics: dict[str, float] | None = None


@dataclass(frozen=True)
class Level:
    """One level, summed up. Latencies of finished requests only, in seconds from the time they were due.

    label, skipped, offered, client_cpu, metrics   as in Tally
    window           seconds that the rates are taken over: the time in which requests were sent, when that was set;
                     else until the last one ended
    started          requests sent; each is in ``finished``, ``errors`` or ``unfinished`` (cut off by Ctrl-C)
    errors           by kind: how many, and how long after it was due the error came
    lost             those of the errors that never had an end from the server
    finish_reasons   of the finished ones
    requests_per_s   ended within the window
    audio_per_s      seconds of audio, over the window: of speech what arrived within it, of recordings what was
                     written down by requests that ended within it
    in_flight        mean number of requests inside
    send_delay       due → sent: what the client itself was late by; open loop only
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
    send_delay: Distribution
    stages: Breakdown | None
    client_cpu: float
    metrics: dict[str, float] | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def common(
    tally: Tally, records: Sequence[Record], audio: Callable[[float], float], stages: Stages, aside: Stages = ()
) -> dict[str, Any]:
    """The fields of Level. ``audio``: seconds of audio that count for a window of so many seconds."""
    window = tally.window
    if window is None:
        window = max((record.ended for record in records), default=0.0)
    done = [record for record in records if record.ok]
    failed = [record for record in records if not record.ok]

    def rate(amount: float) -> float:
        return amount / window if window > 0 else 0.0

    inside = sum(max(0.0, min(r.ended, window) - min(r.sent, window)) for r in records)
    return {
        "label": tally.label,
        "offered": tally.offered,
        "window": window,
        "started": tally.started,
        "finished": len(done),
        "errors": {
            kind: distribution(record.ended - record.due for record in failed if record.kind == kind)
            for kind in sorted({record.kind for record in failed})
        },
        "lost": sum(record.lost for record in failed),
        "skipped": tally.skipped,
        "unfinished": tally.started - len(records),
        "finish_reasons": dict(sorted(Counter(record.finish_reason for record in done).items())),
        "requests_per_s": rate(sum(record.ended <= window for record in done)),
        "audio_per_s": rate(audio(window)),
        "in_flight": rate(inside),
        "send_delay": distribution(record.sent - record.due for record in records if tally.offered is not None),
        "stages": breakdown(records, stages, aside),
        "client_cpu": tally.client_cpu,
        "metrics": tally.metrics,
    }
