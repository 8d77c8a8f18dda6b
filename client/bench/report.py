"""What was measured, as tables of at most 120 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from client.bench.level import Level
from client.bench.table import fixed, render, three

#: Above this share of one core the client itself begins to be what is measured.
BUSY_CPU = 0.8
NOTE = (
    "Percentiles: linear interpolation at rank (n-1)q; '-' below 1/(1-q) samples (p95: 20, p99: 100).\n"
    "n, where not given: ok. Latencies count from when a request was due: in an open loop from the schedule."
)


class Tables(Protocol):
    """What one kind of request adds to the report: speech_tables and transcript_tables are such modules.

    STAGES_NOTE  the line below the stage table
    sections     (title, table) of latencies
    server       the growth of the server's counters
    """

    @property
    def STAGES_NOTE(self) -> str: ...  # noqa: N802 - a constant of a module

    def sections(self, levels: Sequence[Any]) -> list[tuple[str, str]]: ...

    def server(self, levels: Sequence[Level]) -> str: ...


def report(levels: Sequence[Level], tables: Tables, timeline: bool, metrics_problem: str = "") -> str:
    """All tables. ``timeline``: whether the model has that output; ``metrics_problem``: why counters are missing."""
    if not levels:
        return "No level was measured."
    parts = []
    for number, (title, table) in enumerate(tables.sections(levels)):
        parts += [*([""] if number else []), title, table, *([] if number else [NOTE])]
    parts += [f"Warning: {line}" for level in levels for line in warnings(level)]
    if any(level.errors for level in levels):
        parts += ["", "Errors, and how long after it was due each came", _errors(levels)]
    parts.append("")
    if any(level.stages for level in levels):
        parts += ["Stages, mean ms of a request (those left of rest follow one another)", _stages(levels)]
        parts.append(tables.STAGES_NOTE)
    elif timeline:
        parts.append("Stages: no finished request brought a timeline.")
    else:
        parts.append("Stages: the model has no output 'timeline', so there is no breakdown.")
    parts.append("")
    if any(level.metrics for level in levels):
        parts += ["Server, growth of its counters over the level", tables.server(levels)]
    else:
        parts.append(f"Server counters: {metrics_problem or 'no voxstage_* metrics were found.'}")
        parts.append("--metrics-url HOST:PORT says where the server's metrics are; serve.py prints that port.")
    return "\n".join(parts)


def warnings(level: Level) -> list[str]:
    """Sentences about a level whose numbers should not be taken as they are."""
    found = []
    if level.client_cpu > BUSY_CPU:
        found.append(
            f"{level.label}: the client used {100 * level.client_cpu:.0f} % of a core, so it may be the limit; "
            "run several of it, or use another machine."
        )
    if level.skipped:
        found.append(
            f"{level.label}: {level.skipped} arrivals were skipped because of --max-outstanding; "
            "the latencies know nothing of them."
        )
    if level.unfinished:
        found.append(f"{level.label}: interrupted; {level.unfinished} requests were cut off and are in no number.")
    return found


def _errors(levels: Sequence[Level]) -> str:
    names = ["load", "kind", "n", "% of sent", "p50 ms", "p95 ms", "p99 ms", "most ms"]
    rows = [
        [
            level.label,
            kind,
            str(after.n),
            fixed(after.n / level.started, 1, 100),
            *three(after, 1, 1000),
            fixed(after.most, 1, 1000),
        ]
        for level in levels
        for kind, after in level.errors.items()
    ]
    return render([names], rows)


def _stages(levels: Sequence[Level]) -> str:
    measured = [(level.label, level.stages) for level in levels if level.stages is not None]
    first = measured[0][1]
    names = ["load", "n", *first.stages, "rest", "total", *first.aside]
    rows = [
        [
            label,
            str(found.n),
            *(fixed(value, 1, 1000) for value in found.stages.values()),
            fixed(found.rest, 1, 1000),
            fixed(found.total, 1, 1000),
            *(fixed(value, 1, 1000) for value in found.aside.values()),
        ]
        for label, found in measured
    ]
    return render([names], rows)
