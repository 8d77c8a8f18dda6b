"""Where the time of a request goes, from the ``timeline`` of its last chunk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from client.bench.record import Record

#: Name of a stage, and the events it lies between.
Stages = tuple[tuple[str, str, str], ...]

#: Of speech. Each begins where the one before ends, so the durations of a whole timeline add up to ``vocoder_last``.
#: ``received`` is the origin, 0.
STAGES: Stages = (
    ("build", "received", "built"),
    ("to queue", "built", "queued"),
    ("queue", "queued", "scheduled"),
    ("prefill", "scheduled", "first_step"),
    ("first chunk", "first_step", "first_chunk"),
    ("decode tail", "first_chunk", "last_chunk"),
    ("vocoder", "last_chunk", "vocoder_last"),
)
#: Runs while the decoder goes on, so it is in no sum.
SPEECH_ASIDE: Stages = (("1st voc.", "first_chunk", "vocoder_first"),)
#: Of transcription: those of its first window, but for the last one, which lasts until all windows are written down.
ASR_STAGES: Stages = (
    ("audio", "received", "audio"),
    ("features", "audio", "built"),
    ("encode", "built", "encoded"),
    ("to queue", "encoded", "queued"),
    ("queue", "queued", "scheduled"),
    ("prefill", "scheduled", "first_step"),
    ("first text", "first_step", "first_chunk"),
    ("decode tail", "first_chunk", "last_chunk"),
)


@dataclass(frozen=True)
class Breakdown:
    """Means in seconds over the ``n`` finished requests that brought a timeline.

    stages  duration by stage, None where no timeline has both of its events
    total   request sent → last chunk received, at the client
    rest    total minus the stages: Triton, the network, the client
    aside   durations that are in no sum, as ``stages``
    """

    n: int
    stages: dict[str, float | None]
    total: float
    rest: float
    aside: dict[str, float | None]


def breakdown(records: Iterable[Record], stages: Stages = STAGES, aside: Stages = SPEECH_ASIDE) -> Breakdown | None:
    """The breakdown of the finished requests; None when none of them has a timeline."""
    timed = [(record, record.timeline) for record in records if record.ok and record.timeline is not None]
    if not timed:
        return None
    lines = [line for _, line in timed]
    parts = [{name: _between(line, start, end) for name, start, end in stages} for line in lines]
    totals = [record.ended - record.sent for record, _ in timed]
    rests = [
        total - math.fsum(value for value in part.values() if value is not None)
        for total, part in zip(totals, parts, strict=True)
    ]
    return Breakdown(
        n=len(timed),
        stages={name: _mean([part[name] for part in parts]) for name, _, _ in stages},
        total=math.fsum(totals) / len(totals),
        rest=math.fsum(rests) / len(rests),
        aside={name: _mean([_between(line, start, end) for line in lines]) for name, start, end in aside},
    )


def _between(timeline: Mapping[str, float], start: str, end: str) -> float | None:
    begin = 0.0 if start == "received" else timeline.get(start)
    finish = timeline.get(end)
    return None if begin is None or finish is None else finish - begin


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
