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
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.request import DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.device import use_threads
from backends.models.linear import PackedLinear, SkinnyLinear
from backends.models.moss_tts_local import MossTTSLocal
from backends.rows import row_key
from benchmarks.sink import Sink

ROOT = Path(__file__).resolve().parents[1]


class Bench:
    """One model, one engine at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.gpu = self.device.type == "cuda"
        use_threads(options.threads)
        folder = Path(options.checkpoint) if options.checkpoint else (
            ROOT / ("benchmarks/configs/moss_tts_local_v1.5/tts" if self.gpu else "checkpoints/voice/tts")
        )  # fmt: skip
        dtype = torch.bfloat16 if self.gpu else torch.float32
        weights = any(folder.glob("*.safetensors"))
        load = MossTTSLocal.load if weights else MossTTSLocal.dummy
        self.model = load(folder, self.device, dtype)
        self.folder, self.dtype, self.dummy = folder, dtype, not weights
        self.streams = 0

    def engine(self, **switches: Any) -> DecoderEngine:
        largest = max(self.options.batches)
        positions = self.options.prompt + self.options.frames + 64
        config = {
            "max_running": largest,
            "max_waiting": 4 * largest,
            "max_positions": -(-positions // 64) * 64,
            "prefill_rows": self.options.prefill_rows,
            "prefill_pieces": 8,
            "force_frames": self.options.frames,
            "prefix_cache": False,
            "num_threads": self.options.threads,
        }
        return DecoderEngine(self.model, EngineConfig(**{**config, **switches}))

    def request(self, length: int, sampled: bool = False, seed: int | None = None) -> tuple[Sink, DecodeRequest]:
        self.streams += 1
        generator = torch.Generator().manual_seed(self.streams if seed is None else seed)
        spec = self.model.rows
        rows = torch.full((length, spec.width), spec.pad_code, dtype=torch.int64)
        rows[:, 0] = torch.randint(0, min(spec.text_vocab, 250), (length,), generator=generator)
        sampling = SamplingParams(self.streams, 0.9 if sampled else 0.0, 0.9, 50, 0.8)
        sink = Sink()
        return sink, DecodeRequest(self.streams, rows, sampling, self.options.frames, ChunkSchedule(4, 25), sink)

    def steps(self, engine: DecoderEngine, batch: int, sampled: bool = False) -> dict[str, float]:
        """Milliseconds a step with ``batch`` requests decoding, over the measured stretch."""
        streams = []
        for _ in range(batch):
            sink, request = self.request(self.options.prompt, sampled)
            engine.submit(request)
            streams.append((sink, request))
        for sink, _ in streams:
            assert sink.first.wait(300)
        metrics, runner = engine.metrics, engine._runner
        launch_seconds, waits = [0.0], [0.0]
        launch, resolve = runner.launch, runner.resolve

        def timed_launch(requests: Any) -> Any:
            started = time.perf_counter()
            flight = launch(requests)
            launch_seconds[0] += time.perf_counter() - started
            return flight

        def timed_resolve(flight: Any) -> Any:
            started = time.perf_counter()
            if flight.event is not None:
                flight.event.synchronize()
            waits[0] += time.perf_counter() - started
            return resolve(flight)

        runner.launch, runner.resolve = timed_launch, timed_resolve  # type: ignore[method-assign]
        rates = []
        for _ in range(self.options.repeats):
            start_steps, started = metrics.steps.value, time.perf_counter()
            waits[0] = launch_seconds[0] = 0.0
            while metrics.steps.value - start_steps < self.options.steps and not any(
                s.done.is_set() for s, _ in streams
            ):
                time.sleep(0.0005)
            count, seconds = metrics.steps.value - start_steps, time.perf_counter() - started
            rates.append((1e3 * seconds / count, 1e3 * (seconds - waits[0]) / count, 1e3 * launch_seconds[0] / count))
        runner.launch, runner.resolve = launch, resolve  # type: ignore[method-assign]
        length = statistics.mean(request.stored for _, request in streams)
        for _, request in streams:
            engine.cancel(request.stream_id)
        for sink, _ in streams:
            assert sink.done.wait(60)
        step, host, launching = (statistics.median(column) for column in zip(*rates, strict=True))
        spread = max(r[0] for r in rates) - min(r[0] for r in rates)
        return {"ms": step, "spread_ms": spread, "host_ms": host, "launch_ms": launching, "length": length}

    def bandwidth(self) -> float:
        """Bytes a second of a large copy, counting what is read and what is written."""
        size = 2**32 if self.gpu else 2**28
        source = torch.empty(size, dtype=torch.uint8, device=self.device).random_(0, 255)
        target = torch.empty_like(source)
        best = float("inf")
        for _ in range(6):
            self.wait()
            started = time.perf_counter()
            target.copy_(source)
            self.wait()
            best = min(best, time.perf_counter() - started)
        return 2 * size / best

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def floor_ms(self, batch: int, length: float, bandwidth: float) -> float:
        """The least time of a step: bytes that must be read over the bandwidth."""
        spec, kv = self.model.rows, self.model.kv
        item = torch.finfo(self.dtype).bits // 8
        backbone = _numbers(self.model.layers)
        frame = _numbers(self.model.local) * spec.codebooks + sum(_numbers(head) for head in self.model.code_heads)
        cache = 2 * kv.layers * kv.heads * kv.head_dim * length * batch
        return 1e3 * item * (backbone + frame + cache) / bandwidth


def _numbers(module: nn.Module) -> int:
    """Weights below ``module``, packed and streamed ones too."""
    total = sum(parameter.numel() for parameter in module.parameters())
    for part in module.modules():
        if isinstance(part, PackedLinear):
            total += part.in_features * part.out_features
        elif isinstance(part, SkinnyLinear):
            total += part.weight.numel()
    return total


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


def idle_share(bench: Bench, batch: int) -> dict[str, float]:
    """Share of the wall clock in which the GPU runs no kernel, from a profile of graph steps with lookahead."""
    from torch.profiler import ProfilerActivity, profile

    engine = bench.engine()
    streams = [bench.request(bench.options.prompt) for _ in range(batch)]
    for _, request in streams:
        engine.submit(request)
    for sink, _ in streams:
        assert sink.first.wait(300)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        start = engine.metrics.steps.value
        while engine.metrics.steps.value - start < 40:
            time.sleep(0.001)
    engine.close()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in recorded.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    first, last, busy, reach = spans[0][0], max(end for _, end, _ in spans), 0.0, 0.0
    by_name: dict[str, list[float]] = {}
    for start, end, name in spans:
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
        by_name.setdefault(name[:60], []).append(end - start)
    top = sorted(by_name.items(), key=lambda each: -sum(each[1]))[:14]
    for name, times in top:
        print(f"  {sum(times) / 40:8.1f} us a step in {len(times) / 40:6.1f} calls  {name}")
    return {"idle": 1 - busy / (last - first), "kernels_a_step": len(spans) / 40}


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


def transformers_backbone(bench: Bench, batches: tuple[int, ...]) -> list[dict[str, float]]:
    """A decode step of transformers' own Qwen3Model of the same size, without the frame-local part: what is usual."""
    from transformers import DynamicCache, Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

    qwen3 = json.loads((bench.folder / "config.json").read_text())["qwen3_config"]
    config = Qwen3Config(**{key: value for key, value in qwen3.items() if key != "model_type"})
    with torch.device(bench.device):
        model = Qwen3Model(config).to(bench.dtype).eval()
    results = []
    with torch.inference_mode():
        for batch in batches:
            cache = DynamicCache(config=config)
            x = torch.randn(batch, bench.options.prompt, config.hidden_size, device=bench.device, dtype=bench.dtype)
            model(inputs_embeds=x, past_key_values=cache, use_cache=True)
            for count in range(30):
                if count == 10:
                    bench.wait()
                    started = time.perf_counter()
                model(inputs_embeds=x[:, :1], past_key_values=cache, use_cache=True)
            bench.wait()
            results.append({"batch": batch, "ms": 1e3 * (time.perf_counter() - started) / 20})
            print(f"transformers Qwen3Model alone, B {batch}: {results[-1]['ms']:.2f} ms a step", flush=True)
    return results


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
    parser.add_argument("--skip", default="", help="comma list of steps, idle, prefill, transformers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    gpu = options.device.startswith("cuda")
    options.batches = options.batches or ((1, 2, 4, 8, 16, 32, 64) if gpu else (1, 2, 4, 8, 16))
    options.prefill_rows = options.prefill_rows or (128 if gpu else 32)
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
    if gpu and "idle" not in options.skip:
        result["idle"] = idle_share(bench, 16)
        idle = result["idle"]
        print(f"GPU idle {100 * idle['idle']:.1f} % at B 16, {idle['kernels_a_step']:.0f} kernels a step")
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
