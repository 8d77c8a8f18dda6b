"""What one decode step costs, and where the time goes: one sitting, one table, JSON beside it.

    python -m benchmarks.decoder                      the small voice on this machine's CPU
    python -m benchmarks.decoder --device cuda        MOSS-TTS-Local v1.5 sizes (Qwen3-4B backbone), random weights,
    bfloat16

Every number comes from the engine in process (no Triton): B requests that never stop are fed until they all decode,
then steps are counted over a stretch of wall clock. The floor is the time to read the bytes that a step must read
(every weight once, the frame-local transformer once a codebook, keys and values once) at the bandwidth of a large
device-to-device copy.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from backends.rows import row_key
from benchmarks.decoder_bench import Bench
from benchmarks.step_profile import print_profile, step_profile
from benchmarks.transformers_backbone import transformers_backbone


def step_table(bench: Bench, bandwidth: float) -> list[dict[str, Any]]:
    """Step time over batch sizes, for every combination of the switches."""
    rows: list[dict[str, Any]] = []
    for deterministic in (True, False):
        engine = bench.engine(deterministic=deterministic)
        graphs = engine._runner._graphs
        for graph in (True, False) if bench.gpu else (False,):
            engine._runner._graphs = graphs if graph else None
            for lookahead in (True, False):
                engine._loop._lookahead, engine._loop._min_batch = lookahead, 1
                # Eager steps of a GPU take the host's time whatever the batch: a few sizes show that.
                sizes = bench.options.batches if graph or not bench.gpu else bench.options.batches[::3]
                for batch in sizes:
                    measured = bench.steps(engine, batch)
                    floor = bench.floor_ms(batch, measured["length"], bandwidth)
                    rows.append(
                        {"deterministic": deterministic, "graph": graph, "lookahead": lookahead, "batch": batch,
                         "floor_ms": floor, "share_of_bandwidth": floor / measured["ms"], **measured}
                    )  # fmt: skip
                    print(_line(rows[-1]), flush=True)
        engine._runner._graphs = graphs
        for batch in (1, 16, max(bench.options.batches)):
            engine._loop._lookahead = True
            if batch in bench.options.batches:
                measured = bench.steps(engine, batch, sampled=True)
                rows.append({"deterministic": deterministic, "graph": bench.gpu, "lookahead": True, "batch": batch,
                             "sampled": True, **measured})  # fmt: skip
                print(_line(rows[-1]), flush=True)
        print(f"buckets {engine.buckets}, graphs {engine.graphs}", flush=True)
        engine.close()
    return rows


def without_early_launch(bench: Bench) -> dict[str, Any]:
    """Graph steps with lookahead, and their profile, where every kernel starts when the one before has ended."""
    from backends.kernels.gpu.early import allow_early_launch

    allow_early_launch(False)
    try:
        engine, steps = bench.engine(), {}
        for batch in [size for size in (1, 16, 32) if size in bench.options.batches]:
            steps[str(batch)] = bench.steps(engine, batch)["ms"]
            print(f"no early launch, B {batch:3d}  {steps[str(batch)]:7.2f} ms", flush=True)
        engine.close()
        return {"ms": steps, "profile": step_profile(bench, 16)}
    finally:
        allow_early_launch(True)


def _line(row: dict[str, Any]) -> str:
    words = [
        "fixed bucket" if row["deterministic"] else "exact buckets",
        "graph" if row["graph"] else "eager",
        "lookahead" if row["lookahead"] else "sync",
        "sampled" if row.get("sampled") else "greedy",
    ]
    share = f"floor {row['floor_ms']:6.2f} ms {100 * row['share_of_bandwidth']:3.0f} %" if "floor_ms" in row else ""
    return (
        f"{words[0]:13} {words[1]:5} {words[2]:9} {words[3]:7} B {row['batch']:3d}  {row['ms']:7.2f} ms "
        f"(spread {row['spread_ms']:.2f})  host {row['host_ms']:6.2f}  launch {row['launch_ms']:6.2f}  {share}"
    )


def prefill(bench: Bench) -> list[dict[str, float]]:
    """Rows a second of prompt reading, and the first frame of a long prompt on a cold and a warm prefix cache."""
    results = []
    for length in bench.options.prefill_lengths:
        engine = bench.engine(
            prefix_cache=True,
            max_positions=-(-(length + 64 + bench.options.frames) // 64) * 64,
            max_running=4,
            force_frames=4,
        )
        times = []
        for attempt in range(4):  # the first warms up with another prompt; then cold, warm, warm
            sink, request = bench.request(length, seed=7 if attempt else 6)
            started = time.perf_counter()
            engine.submit(request)
            assert sink.done.wait(300)
            times.append(time.perf_counter() - started)
        engine.close()
        results.append({"rows": length, "cold_ms": 1e3 * times[1], "warm_ms": 1e3 * min(times[2:]),
                        "rows_per_s": length / times[1]})  # fmt: skip
        print(
            f"prompt of {length} rows, 4 frames: cold {1e3 * times[1]:.1f} ms, warm {1e3 * min(times[2:]):.1f} ms",
            flush=True,
        )
    return results


def key_cost(bench: Bench) -> float:
    """Microseconds of the row key of the largest batch, as the device runs it."""
    rows = torch.randint(0, 1024, (max(bench.options.batches), bench.model.rows.width), device=bench.device)
    row_key(rows)
    run = lambda: row_key(rows)  # noqa: E731
    if bench.gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            row_key(rows)
        run = graph.replay
    bench.wait()
    started = time.perf_counter()
    for _ in range(500):
        run()
    bench.wait()
    return 1e6 * (time.perf_counter() - started) / 500


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoint", help="folder with config.json; without weights they are random")
    parser.add_argument("--batches", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--prompt", type=int, default=100, help="prompt rows")
    parser.add_argument("--frames", type=int, default=900, help="frames of a request; more than are measured")
    parser.add_argument("--steps", type=int, default=60, help="steps of one measured stretch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prefill-rows", type=int)
    parser.add_argument("--prefill-lengths", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--skip", default="", help="comma list of steps, profile, prefill, transformers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    gpu = options.device.startswith("cuda")
    options.batches = options.batches or ((1, 2, 4, 8, 16, 32, 64) if gpu else (1, 2, 4, 8, 16))
    options.prefill_rows = options.prefill_rows or 32
    options.prefill_lengths = options.prefill_lengths or ((256, 1024) if gpu else (64, 256))
    bench = Bench(options)
    name = torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
    size = "random weights" if bench.dummy else "trained weights"
    threads = options.threads or "half the"
    print(f"{name}, torch {torch.__version__}, {bench.folder.parent.name}, {size}, {bench.dtype}, {threads} threads")
    result: dict[str, Any] = {
        "device": name,
        "torch": torch.__version__,
        "model": bench.folder.parent.name,
        "dummy": bench.dummy,
        "date": time.strftime("%Y-%m-%d"),
        "options": {key: str(value) for key, value in vars(options).items() if key != "json"},
    }
    result["copy_bandwidth"] = bench.bandwidth()
    print(f"copy bandwidth {result['copy_bandwidth'] / 1e9:.0f} GB/s, read and written counted")
    result["key_us"] = key_cost(bench)
    print(f"row key of {max(options.batches)} rows: {result['key_us']:.1f} us")
    if "steps" not in options.skip:
        result["steps"] = step_table(bench, result["copy_bandwidth"])
        _save(options.json, result)
    if "prefill" not in options.skip:
        result["prefill"] = prefill(bench)
        _save(options.json, result)
    if gpu and "profile" not in options.skip:
        result["profile"] = step_profile(bench, 16)
        print_profile(result["profile"])
        result["without_early_launch"] = without_early_launch(bench)
        print_profile(result["without_early_launch"]["profile"])
        _save(options.json, result)
    if "transformers" not in options.skip:
        result["transformers"] = transformers_backbone(bench, (1, 16))
    _save(options.json, result)


def _save(path: Path | None, result: dict[str, Any]) -> None:
    """What there is so far: a later part may fail or run out of time."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
