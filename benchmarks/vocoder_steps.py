"""Time of full vocoder steps, cost of capturing them, and what bfloat16 costs in precision."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import torch

from backends.vocoder.graphs import GraphOptions
from backends.vocoder.streaming import StreamingVocoder


def capture_cost(
    codec: Any, options: argparse.Namespace, slots: int
) -> tuple[dict[str, Any], StreamingVocoder, StreamingVocoder]:
    """Seconds and memory from codec to ready; a vocoder as it serves, and one with graphs for every bucket."""
    streams, graphs = max(options.streams), GraphOptions(options.graph_frames)
    free = torch.cuda.mem_get_info
    before = free()[0]
    vocoder = StreamingVocoder(codec, streams, slots, options.graph_frames)
    state = before - free()[0]
    started = time.perf_counter()
    vocoder.prepare(None)
    checked = time.perf_counter() - started
    torch.cuda.empty_cache()
    before, started = free()[0], time.perf_counter()
    vocoder.prepare(graphs)
    torch.cuda.empty_cache()
    report = {
        "slots": slots,
        "state_gib": round(state / 2**30, 2),
        "bucket_check_with_compilation_s": round(checked, 1),
        "check_and_capture_s": round(time.perf_counter() - started, 1),
        "graphs": vocoder.graphs,
        "graphs_gib": round((before - free()[0]) / 2**30, 2),
        "buckets_that_agree": vocoder.buckets,
    }
    every = StreamingVocoder(codec, streams, streams, options.graph_frames)
    torch.cuda.empty_cache()
    before, started = free()[0], time.perf_counter()
    every.prepare(graphs, deterministic=False)
    torch.cuda.empty_cache()
    report |= {
        "every_bucket_check_and_capture_s": round(time.perf_counter() - started, 1),
        "every_bucket_graphs": every.graphs,
        "every_bucket_graphs_gib": round((before - free()[0]) / 2**30, 2),
    }
    return report, vocoder, every


def step_table(vocoder: StreamingVocoder, options: argparse.Namespace, threads: int = 0) -> list[dict[str, Any]]:
    """Median milliseconds of full steps over (B, T), far enough into the streams that every window is full."""
    rows = []
    for streams in [size for size in options.streams if size in vocoder.buckets]:
        slots = [vocoder.open() for _ in range(streams)]
        longest = vocoder.max_step_frames
        for _ in range(math.ceil(130 / longest)):
            vocoder.decode(slots, _codes(vocoder, streams, longest))
        for frames in options.frames:
            row: dict[str, Any] = {"streams": streams, "frames": frames}
            if threads:
                row["threads"] = threads
            codes = _codes(vocoder, streams, frames)
            if (streams, frames) in vocoder._graphs:
                row["graph_ms"] = _median_ms(vocoder, slots, codes, options.seconds)
                graphs, vocoder._graphs._graphs = vocoder._graphs._graphs, {}
                row["eager_ms"] = _median_ms(vocoder, slots, codes, options.seconds)
                vocoder._graphs._graphs = graphs
            else:
                row["eager_ms"] = _median_ms(vocoder, slots, codes, options.seconds)
            rows.append(row)
            print(row, flush=True)
        for slot in slots:
            vocoder.close(slot)
    return rows


def _codes(vocoder: StreamingVocoder, streams: int, frames: int) -> torch.Tensor:
    return torch.randint(vocoder.codec.entries, (streams, frames, vocoder.codec.codebooks))


def _median_ms(vocoder: StreamingVocoder, slots: list[int], codes: torch.Tensor, seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 8 or (time.perf_counter() < end and len(times) < 200):
        started = time.perf_counter()
        vocoder.decode(slots, codes)
        times.append(time.perf_counter() - started)
    return round(statistics.median(times[3:]) * 1e3, 3)


def precision_db(codec: Any, exact: Any, frames: int = 50) -> float:
    """Signal to noise of ``codec`` against ``exact``, random codes, in dB."""
    codes = torch.randint(codec.entries, (frames, codec.codebooks), generator=torch.Generator().manual_seed(0))
    want, got = exact.decode(codes).double(), codec.decode(codes).double()
    return round(float(10 * torch.log10(want.square().sum() / (want - got).square().sum())), 1)


def chunked_db(vocoder: StreamingVocoder, frames: int = 100) -> float | None:
    """Signal to noise of chunks of 1 and 5 frames against the longest, in dB, the worse of the two; None: bit-equal."""
    codes = torch.randint(vocoder.codec.entries, (frames, vocoder.codec.codebooks))
    want, worst = vocoder.decode_whole(codes).double(), math.inf
    for size in (1, 5):
        slot = vocoder.open()
        got = torch.cat([vocoder.decode([slot], part[None])[0] for part in codes.split(size)]).double()
        vocoder.close(slot)
        worst = min(worst, float(10 * torch.log10(want.square().sum() / (want - got).square().sum())))
    return round(worst, 1) if math.isfinite(worst) else None
