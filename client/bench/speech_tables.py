"""The tables of a measurement of speech."""

from __future__ import annotations

from collections.abc import Sequence

from client.bench.level import Level
from client.bench.speech import UNDERRUNS_S, SpeechLevel
from client.bench.table import fixed, per, render, three, whole

STAGES_NOTE = "rest: total at the client minus the stages. 1st voc.: first codes to first audio, part of no sum."


def sections(levels: Sequence[SpeechLevel]) -> list[tuple[str, str]]:
    """(title, table) of what listeners would notice."""
    return [
        ("Latency, speed and throughput", _latency(levels)),
        ("Playback, and the client itself", _playback(levels)),
    ]


def _latency(levels: Sequence[SpeechLevel]) -> str:
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
            *three(level.first_chunk, 0, 1000),
            str(level.gap.n),
            *three(level.gap, 0, 1000),
            *three(level.real_time_factor, 3),
        ]
        for level in levels
    ]
    return render([groups, names], rows)


def _playback(levels: Sequence[SpeechLevel]) -> str:
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


def server(levels: Sequence[Level]) -> str:
    """Growth of the counters."""
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
                fixed(per(frames, steps), 2),
                fixed(per(grown("decoder_step_seconds"), steps), 2, 1000),
                fixed(grown("decoder_prefill_seconds"), 0, 1000),
                whole(grown("decoder_overruns")),
                whole(grown("decoder_prefix_hits")),
                whole(grown("decoder_retracted")),
                whole(grown("decoder_graph_replays")),
                whole(grown("decoder_shed")),
                whole(grown("vocoder_steps")),
                fixed(per(grown("vocoder_step_seconds"), grown("vocoder_steps")), 2, 1000),
            ]
        )
    return render([groups, names], rows)
