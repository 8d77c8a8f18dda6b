"""The decoder engine in process: one model, requests that never end, steps counted over the wall clock."""

from __future__ import annotations

import argparse
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
