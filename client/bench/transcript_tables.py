"""The tables of a measurement of transcription."""

from __future__ import annotations

from collections.abc import Sequence

from client.bench.level import Level
from client.bench.table import fixed, per, render, three, whole
from client.bench.transcripts import Length, TranscriptLevel

STAGES_NOTE = (
    "rest: total at the client minus the stages. The stages are those of the first window; decode tail has the others."
)


def sections(levels: Sequence[TranscriptLevel]) -> list[tuple[str, str]]:
    """(title, table) of what users would notice."""
    found = [("Latency and throughput", _latency(levels))]
    if any(len(level.lengths) > 1 for level in levels):
        found.append(("By length of the recording", _lengths(levels)))
    return found


def _latency(levels: Sequence[TranscriptLevel]) -> str:
    groups = ["", *[""] * 6, "latency, ms", "", "", "", "first text, ms", "", "", "sent late, ms", "", "client"]
    names = ["load", "ok", "err", "lost", "req/s", "RTFx", "inside", "mean", "p50", "p95", "p99"]
    names += ["p50", "p95", "p99", "p50", "most", "% core"]
    rows = [
        [
            level.label,
            str(level.finished),
            str(sum(error.n for error in level.errors.values())),
            str(level.lost),
            fixed(level.requests_per_s, 2),
            fixed(level.audio_per_s, 1),
            fixed(level.in_flight, 1),
            fixed(level.latency.mean, 0, 1000),
            *three(level.latency, 0, 1000),
            *three(level.first_text, 0, 1000),
            fixed(level.send_delay.p50, 1, 1000),
            fixed(level.send_delay.most, 1, 1000),
            fixed(level.client_cpu, 0, 100),
        ]
        for level in levels
    ]
    return render([groups, names], rows)


def _lengths(levels: Sequence[TranscriptLevel]) -> str:
    groups = ["", "", "", "", "latency, ms", "", "", "", "first text, ms", "", ""]
    names = ["load", "length", "n", "mean s", "mean", "p50", "p95", "p99", "p50", "p95", "p99"]
    rows = [
        [
            level.label,
            _bounds(group),
            str(group.audio.n),
            fixed(group.audio.mean, 1),
            fixed(group.latency.mean, 0, 1000),
            *three(group.latency, 0, 1000),
            *three(group.first_text, 0, 1000),
        ]
        for level in levels
        for group in level.lengths
    ]
    return render([groups, names], rows)


def _bounds(group: Length) -> str:
    return f"{group.least:g}+ s" if group.below is None else f"{group.least:g}-{group.below:g} s"


def server(levels: Sequence[Level]) -> str:
    """Growth of the counters."""
    groups = ["", "windows, mean ms", "", "", "", "", "", "decoder", *[""] * 4, "shed", ""]
    names = [
        "load",
        "sent",
        "silent",
        "cached",
        "features",
        "states",
        "prefill",
        "steps",
        "tokens",
        "rows/step",
        "step ms",
    ]
    names += ["pfx hits", "prompt", "decoder"]
    rows = []
    for level in levels:
        if level.metrics is None:
            continue
        grown = {name.removeprefix("voxstage_"): value for name, value in level.metrics.items()}.get
        steps, frames, windows = grown("decoder_steps"), grown("decoder_frames"), grown("asr_windows")
        rows.append(
            [
                level.label,
                whole(windows),
                whole(grown("asr_silent_windows")),
                whole(grown("asr_cache_hits")),
                fixed(per(grown("asr_feature_seconds"), windows), 1, 1000),
                fixed(per(grown("asr_encode_seconds"), windows), 1, 1000),
                fixed(per(grown("decoder_prefill_seconds"), windows), 1, 1000),
                whole(steps),
                whole(frames),
                fixed(per(frames, steps), 2),
                fixed(per(grown("decoder_step_seconds"), steps), 2, 1000),
                whole(grown("decoder_prefix_hits")),
                whole(grown("asr_shed")),
                whole(grown("decoder_shed")),
            ]
        )
    return render([groups, names], rows)
