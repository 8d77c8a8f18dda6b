"""Where the time of a request goes, from the ``timeline`` of its last chunk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from client.bench.record import Record

#: Name of a stage, and the events it lies between. Each begins where the one before ends, so the durations of a whole
#: timeline add up to ``vocoder_last``. ``received`` is the origin, 0.
STAGES = (
    ("build", "received", "built"),
    ("to queue", "built", "queued"),
    ("queue", "queued", "scheduled"),
    ("prefill", "scheduled", "first_step"),
    ("first chunk", "first_step", "first_chunk"),
    ("decode tail", "first_chunk", "last_chunk"),
    ("vocoder", "last_chunk", "vocoder_last"),
)


@dataclass(frozen=True)
class Breakdown:
    """Means in seconds over the ``n`` finished requests that brought a timeline.

    stages         duration by stage, None where no timeline has both of its events
    total          request sent → last chunk received, at the client
    rest           total minus the stages: Triton, the network, the client
    first_vocoder  first chunk of codes → its audio; runs while the decoder goes on, so it is in no sum
    """

    n: int
    stages: dict[str, float | None]
    total: float
    rest: float
    first_vocoder: float | None


def breakdown(records: Iterable[Record]) -> Breakdown | None:
    """The breakdown of the finished requests; None when none of them has a timeline."""
    timed = [(record, record.timeline) for record in records if record.ok and record.timeline is not None]
    if not timed:
        return None
    parts = [{name: _between(line, start, end) for name, start, end in STAGES} for _, line in timed]
    totals = [record.ended - record.sent for record, _ in timed]
    rests = [
        total - math.fsum(value for value in part.values() if value is not None)
        for total, part in zip(totals, parts, strict=True)
    ]
    return Breakdown(
        n=len(timed),
        stages={name: _mean([part[name] for part in parts]) for name, _, _ in STAGES},
        total=math.fsum(totals) / len(totals),
        rest=math.fsum(rests) / len(rests),
        first_vocoder=_mean([_between(line, "first_chunk", "vocoder_first") for _, line in timed]),
    )


def _between(timeline: Mapping[str, float], start: str, end: str) -> float | None:
    begin = 0.0 if start == "received" else timeline.get(start)
    finish = timeline.get(end)
    return None if begin is None or finish is None else finish - begin


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
