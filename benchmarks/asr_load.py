"""Speech to text under load: a closed loop at several concurrencies against a server that this starts.

    python -m benchmarks.asr_load                                        Whisper tiny.en on this machine's CPU
    python -m benchmarks.asr_load --checkpoint benchmarks/configs/qwen3_asr_toy      next to no model: the way alone
    python -m benchmarks.asr_load --device cuda --checkpoint benchmarks/configs/qwen3_asr_1.7b       random weights

Every request brings raw samples and gets a forced number of tokens, so that all do the same work. Two sides, each with
a server of its own: without the cache of states and with samples that it has never seen, and with the cache and the
same few clips again and again (which the decoder's prefix cache knows then, too). The clients are several processes.

A level warms up, then counts what ends within its window; errors are counted wherever they happen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.asr_clients import Clients, Job, Part
from benchmarks.made_checkpoint import has_weights, make_checkpoint
from benchmarks.usage import GpuWatch, cpu_seconds
from client.bench.distribution import METHOD, distribution
from client.bench.machine import describe
from client.bench.metrics import read_metrics
from client.bench.stages import ASR_STAGES, breakdown
from client.bench.table import fixed, render
from client.local_server import running_server

ROOT = Path(__file__).resolve().parents[1]
OTHERS = ("tts_", "audio_encoder")
#: What a server is started with, and whether its clips are unseen.
SIDES = {"unseen": ("asr_prompt.cache_mib=0", True), "cached": ("asr_prompt.cache_mib=4096", False)}
_LEAD_S = 0.3
Level = dict[str, Any]


def serve_arguments(options: argparse.Namespace, side: str, folder: Path) -> list[str]:
    """For serve.py. Later settings win, so ``--set`` comes last."""
    most = max(options.concurrency)
    # Twice as many as are ever under way: a place is free a moment after its answer, and the next request is as quick.
    settings = [f"asr_prompt.max_requests={2 * most}", f"asr_decoder.max_waiting={8 * most}"]
    settings += [SIDES[side][0], f"asr_decoder.force_frames={options.tokens}"]
    arguments = ["--pipelines", "asr", "--device", options.device, "--canary-interval", "0"]
    if options.checkpoint is not None:
        checkpoint = ROOT / options.checkpoint
        if not has_weights(checkpoint):
            made = folder / "checkpoint"
            checkpoint = made if made.exists() else make_checkpoint(checkpoint, made)
            settings += ["asr_encoder.load_format=dummy", "asr_decoder.load_format=dummy"]
        arguments += ["--asr-checkpoint", str(checkpoint)]
    if options.device.startswith("cuda"):
        settings += [f"asr_decoder.max_running={min(most, 64)}", "asr_prompt.workers=48"]
    for setting in [*settings, *options.set]:
        arguments += ["--set", setting]
    return arguments


def measure(
    clients: Clients, ready: dict[str, Any], concurrency: int, options: argparse.Namespace, rate: float
) -> Level:
    """One level. ``ready``: what serve.py wrote when it was; ``rate``: requests/s of the level before, 0 for none.

    All workers of a level begin at once, so the first answers come sooner than later ones: the window opens when each
    has probably had one.
    """
    warm = max(options.warm, 1.5 * concurrency / rate if rate else 0.0)
    server = {"tritonserver": ready["triton_pid"], **ready["stages"]}
    metrics = f"http://127.0.0.1:{ready['metrics']}/metrics"
    before = read_metrics(metrics, OTHERS)
    begin = time.monotonic() + _LEAD_S
    count = clients.start(concurrency, begin, warm + options.seconds)
    first, last = begin + warm, begin + warm + options.seconds
    time.sleep(max(0.0, first - time.monotonic()))
    gpu, cpu = GpuWatch(), cpu_seconds(server)
    with gpu.watching(options.device.startswith("cuda")):
        time.sleep(max(0.0, last - time.monotonic()))
    spent = {name: seconds - cpu.get(name, 0.0) for name, seconds in cpu_seconds(server).items()}
    parts = clients.parts(count)
    level = summarise(concurrency, parts, first, last, options.clip_seconds)
    done = max(level["requests"], 1)
    level |= {
        "gpu_busy_percent": gpu.busy,
        "cpu_ms_per_request": {name: 1000 * seconds / done for name, seconds in spent.items()},
        "cores": {name: seconds / options.seconds for name, seconds in spent.items()},
        "counters": read_metrics(metrics, OTHERS).since(before),
    }
    return level


def summarise(concurrency: int, parts: Sequence[Part], first: float, last: float, clip_seconds: float) -> Level:
    """What ended between ``first`` and ``last``, times of the monotonic clock."""
    records = [record for part in parts for record in part.records]
    inside = [record for record in records if record.ok and first <= record.ended < last]
    rate = len(inside) / (last - first)
    errors = Counter(record.kind for record in records if not record.ok)
    lost, shed = sum(record.lost for record in records), errors["UNAVAILABLE"]
    found = breakdown(inside, ASR_STAGES, ())
    return {
        "concurrency": concurrency,
        "requests": len(inside),
        "requests_per_s": rate,
        "rtfx": rate * clip_seconds,
        "latency_s": dataclasses.asdict(distribution(record.latency_s for record in inside)),
        "first_text_s": dataclasses.asdict(
            distribution(text for record in inside if (text := record.first_text_s) is not None)
        ),
        "sent": len(records),
        "shed": shed,
        "lost": lost,
        "failed": errors.total() - shed - lost,
        "errors": dict(errors),
        "messages": sorted({record.message for record in records if not record.ok})[:5],
        "finish_reasons": dict(Counter(record.finish_reason for record in inside)),
        "responses_per_request": sum(len(record.chunks) for record in inside) / max(len(inside), 1),
        "stages_s": None if found is None else {**found.stages, "rest": found.rest, "total": found.total},
        "client_cores": [part.cpu for part in parts],
    }


def verdict(levels: Sequence[Level]) -> dict[str, Any]:
    """The two questions that the whole curve answers."""
    p95 = {level["concurrency"]: level["latency_s"]["p95"] for level in levels}
    rates = [level["requests_per_s"] for level in levels]
    falls = [100 * (1 - after / before) for before, after in zip(rates, rates[1:], strict=False) if before]
    ratio = p95[64] / p95[16] if p95.get(64) and p95.get(16) else None
    return {"p95_64_over_16": ratio, "largest_fall_percent": max([0.0, *falls])}


def report(side: str, levels: Sequence[Level]) -> str:
    """The tables of one side."""
    names = ["c", "req/s", "RTFx", "mean ms", "p50", "p95", "p99", "1st text", "resp", "shed", "failed", "lost"]
    rows = [
        [
            str(level["concurrency"]), fixed(level["requests_per_s"], 1), fixed(level["rtfx"], 1),
            *(fixed(level["latency_s"][name], 0, 1000) for name in ("mean", "p50", "p95", "p99")),
            fixed(level["first_text_s"]["mean"], 0, 1000), fixed(level["responses_per_request"], 1),
            *(str(level[name]) for name in ("shed", "failed", "lost")),
        ]
        for level in levels
    ]  # fmt: skip
    staged = [level for level in levels if level["stages_s"]]
    stages = [*staged[0]["stages_s"]] if staged else []
    times = [
        [str(level["concurrency"]), *(fixed(level["stages_s"].get(name), 1, 1000) for name in stages)]
        for level in staged
    ]
    processes = [*levels[0]["cpu_ms_per_request"]]
    costs = [
        [
            str(level["concurrency"]),
            *(fixed(level["cpu_ms_per_request"].get(name), 2) for name in processes),
            fixed(sum(level["cores"].values()), 2),
            fixed(max(level["client_cores"], default=None), 2),
            fixed(level["gpu_busy_percent"]),
        ]
        for level in levels
    ]
    return "\n".join(
        [
            f"{side}: {verdict(levels)}", render([names], rows),
            "Stages, mean ms", render([["c", *stages]], times),
            "CPU ms a request; cores of the server, of the busiest client; GPU busy %",
            render([["c", *processes, "cores", "client", "GPU"]], costs),
        ]
    )  # fmt: skip


def run(options: argparse.Namespace, side: str, folder: Path, levels: list[Level], save: Callable[[], None]) -> None:
    """Measure one side. Fills ``levels``, so that what was measured before something broke is there."""
    unseen = SIDES[side][1]
    places = min(options.clients, max(options.concurrency))
    with running_server(serve_arguments(options, side, folder), stdout=2) as found:
        ready: dict[str, Any] = dict(found)
        job = Job(
            f"127.0.0.1:{ready['grpc']}",
            options.clip_seconds,
            options.clips,
            options.language,
            unseen,
            options.patience,
        )
        with Clients(job, places) as clients:
            # Kernels, caches; with the cache of states every clip once, however long that takes.
            length, count = (options.warm, None) if unseen else (options.patience, options.clips)
            clients.parts(clients.start(min(16, max(options.concurrency)), time.monotonic(), length, count))
            for concurrency in options.concurrency:
                rate = levels[-1]["requests_per_s"] if levels else 0.0
                levels.append(measure(clients, ready, concurrency, options, rate))
                level = levels[-1]
                print(
                    f"{side} c={concurrency}: {level['requests_per_s']:.1f} req/s, mean "
                    f"{1000 * (level['latency_s']['mean'] or 0):.0f} ms, errors {level['errors']}",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
                save()


def main() -> None:
    """All sides, their tables, one file."""
    parser = argparse.ArgumentParser(description="speech to text under load, of a server that this starts")
    add = parser.add_argument
    add("--device", default="cpu")
    add("--checkpoint", type=Path, help="without weights: random ones (default: Whisper tiny.en)")
    add("--concurrency", type=lambda text: tuple(map(int, text.split(","))), default=(1, 8, 16, 32, 64, 128))
    add("--seconds", type=float, default=10.0, help="window of a level")
    add("--warm", type=float, default=3.0, help="before each window, and before the first level")
    add("--patience", type=float, default=120.0, help="seconds to wait for an answer before it counts as lost")
    add("--tokens", type=int, default=20, help="forced, of every request")
    add("--clip-seconds", type=float, default=4.7)
    add("--clips", type=int, default=32, help="different ones")
    add("--language", default="en", help="of every request; empty: the model has to say")
    add("--clients", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)), help="processes")
    add("--sides", type=lambda text: tuple(text.split(",")), default=tuple(SIDES), help=", ".join(SIDES))
    add("--set", action="append", default=[], metavar="STAGE.KEY=VALUE", help="of the server; repeatable")
    add("--json", type=Path)
    options = parser.parse_args()
    from benchmarks.sitting import sitting  # not at the top: it loads torch

    about = {**sitting(options), "machine": describe(), "percentiles": METHOD}
    sides: dict[str, list[Level]] = {}

    def save() -> None:
        if options.json:
            found = {side: {**verdict(levels), "levels": levels} for side, levels in sides.items()}
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps({**about, "sides": found}, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        for side in options.sides:
            levels = sides.setdefault(side, [])
            try:
                run(options, side, Path(folder), levels, save)
            finally:
                if levels:
                    print(report(side, levels), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
