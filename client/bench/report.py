"""What was measured, as tables of at most 120 columns."""

from __future__ import annotations

from collections.abc import Sequence

from client.bench.distribution import Distribution
from client.bench.level import UNDERRUNS_S, Level
from client.bench.stages import STAGES
from client.bench.table import fixed, render, whole

#: Above this share of one core the client itself begins to be what is measured.
BUSY_CPU = 0.8
NOTE = (
    "Percentiles: linear interpolation at rank (n-1)q; '-' below 1/(1-q) samples (p95: 20, p99: 100).\n"
    "n, where not given: ok. Latencies count from when a request was due: in an open loop from the schedule."
)


def report(levels: Sequence[Level], timeline: bool, metrics_problem: str = "") -> str:
    """All tables. ``timeline``: whether the model has that output; ``metrics_problem``: why counters are missing."""
    if not levels:
        return "No level was measured."
    parts = ["Latency, speed and throughput", _latency(levels), NOTE, "", "Playback, and the client itself"]
    parts.append(_playback(levels))
    parts += [f"Warning: {line}" for level in levels for line in warnings(level)]
    if any(level.errors for level in levels):
        parts += ["", "Errors, and how long after it was due each came", _errors(levels)]
    parts.append("")
    if any(level.stages for level in levels):
        parts += ["Stages, mean ms of a request (to queue … vocoder follow one another)", _stages(levels)]
        parts.append(
            "rest: total at the client minus the stages. 1st voc.: first codes to first audio, part of no sum."
        )
    elif timeline:
        parts.append("Stages: no finished request brought a timeline.")
    else:
        parts.append("Stages: the model has no output 'timeline', so there is no breakdown.")
    parts.append("")
    if any(level.metrics for level in levels):
        parts += ["Server, growth of its counters over the level", _server(levels)]
    else:
        parts.append(f"Server counters: {metrics_problem or 'no voxstage_* metrics were found.'}")
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


def _latency(levels: Sequence[Level]) -> str:
    groups = [
        "",
        *[""] * 6,
        "first chunk, ms",
        "",
        "",
        "",
        "inter-chunk gap, ms",
        "",
        "",
        "",
        "real-time factor",
        "",
        "",
    ]
    names = ["load", "ok", "err", "lost", "req/s", "audio s/s", "inside"]
    names += ["p50", "p95", "p99", "n", "p50", "p95", "p99", "p50", "p95", "p99"]
    rows = [
        [
            level.label,
            str(level.finished),
            str(sum(error.n for error in level.errors.values())),
            str(level.lost),
            fixed(level.requests_per_s, 2),
            fixed(level.audio_per_s, 2),
            fixed(level.in_flight, 1),
            *_three(level.first_chunk, 0, 1000),
            str(level.gap.n),
            *_three(level.gap, 0, 1000),
            *_three(level.real_time_factor, 3),
        ]
        for level in levels
    ]
    return render([groups, names], rows)


def _playback(levels: Sequence[Level]) -> str:
    groups = ["", "", "ran dry, % of streams", *[""] * (len(UNDERRUNS_S) - 1), "worst", "sent late, ms", "", "client"]
    names = ["load", "streams", *("at all" if not over else f">{1000 * over:.0f}ms" for over in UNDERRUNS_S), "ms"]
    names += ["p50", "most", "% of a core"]
    rows = [
        [
            level.label,
            str(level.underrun.n),
            *(fixed(level.underrun.shares[over], 1, 100) for over in UNDERRUNS_S),
            fixed(level.underrun.worst, 0, 1000),
            fixed(level.send_delay.p50, 1, 1000),
            fixed(level.send_delay.most, 1, 1000),
            fixed(level.client_cpu, 0, 100),
        ]
        for level in levels
    ]
    return render([groups, names], rows)


def _errors(levels: Sequence[Level]) -> str:
    names = ["load", "kind", "n", "% of sent", "p50 ms", "p95 ms", "p99 ms", "most ms"]
    rows = [
        [
            level.label,
            kind,
            str(after.n),
            fixed(after.n / level.started, 1, 100),
            *_three(after, 1, 1000),
            fixed(after.most, 1, 1000),
        ]
        for level in levels
        for kind, after in level.errors.items()
    ]
    return render([names], rows)


def _stages(levels: Sequence[Level]) -> str:
    names = ["load", "n", *(name for name, _, _ in STAGES), "rest", "total", "1st voc."]
    rows = [
        [
            level.label,
            str(found.n),
            *(fixed(found.stages[name], 1, 1000) for name, _, _ in STAGES),
            fixed(found.rest, 1, 1000),
            fixed(found.total, 1, 1000),
            fixed(found.first_vocoder, 1, 1000),
        ]
        for level in levels
        if (found := level.stages) is not None
    ]
    return render([names], rows)


def _server(levels: Sequence[Level]) -> str:
    groups = ["", "decoder", *[""] * 9, "vocoder", ""]
    names = ["load", "steps", "frames", "rows/step", "step ms", "prefill ms", "overruns", "pfx hits"]
    names += ["retracted", "replays", "shed", "steps", "step ms"]
    rows = []
    for level in levels:
        if level.metrics is None:
            continue
        grown = {name.removeprefix("voxstage_"): value for name, value in level.metrics.items()}.get
        steps, frames = grown("decoder_steps"), grown("decoder_frames")
        rows.append(
            [
                level.label,
                whole(steps),
                whole(frames),
                fixed(_over(frames, steps), 2),
                fixed(_over(grown("decoder_step_seconds"), steps), 2, 1000),
                fixed(grown("decoder_prefill_seconds"), 0, 1000),
                whole(grown("decoder_overruns")),
                whole(grown("decoder_prefix_hits")),
                whole(grown("decoder_retracted")),
                whole(grown("decoder_graph_replays")),
                whole(grown("decoder_shed")),
                whole(grown("vocoder_steps")),
                fixed(_over(grown("vocoder_step_seconds"), grown("vocoder_steps")), 2, 1000),
            ]
        )
    return render([groups, names], rows)


def _over(amount: float | None, count: float | None) -> float | None:
    return amount / count if amount is not None and count else None


def _three(found: Distribution, digits: int, scale: float = 1.0) -> list[str]:
    return [fixed(value, digits, scale) for value in (found.p50, found.p95, found.p99)]
