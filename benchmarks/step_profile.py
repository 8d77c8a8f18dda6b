"""Where the time of a decode step goes on a GPU: its kernels, and the gaps between them."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.decoder_bench import Bench

_STEPS = 40
_TOP = 16


def step_profile(bench: Bench, batch: int) -> dict[str, Any]:
    """Profile graph steps with lookahead of ``batch`` requests.

    ``idle``: share of the wall clock in which no kernel and no copy is on the device. A kernel that was launched early
    and waits for the one before counts as being there, so ``sum_us`` (of all durations, a step) may exceed ``step_us``.
    ``kernels`` and ``gaps``: the largest sums, microseconds a step; a gap is named by its two neighbours.
    """
    engine = bench.engine()
    streams = [bench.request(bench.options.prompt) for _ in range(batch)]
    for _, request in streams:
        engine.submit(request)
    for sink, _ in streams:
        assert sink.first.wait(300)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        start = engine.metrics.steps.value
        while engine.metrics.steps.value - start < _STEPS:
            time.sleep(0.001)
    engine.close()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name[:60])
        for event in recorded.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    kernels: dict[str, list[float]] = {}
    gaps: dict[str, list[float]] = {}
    reach, last = spans[0][0], ""
    for start, end, name in spans:
        kernels.setdefault(name, []).append(end - start)
        if start > reach:
            gaps.setdefault(f"{last[:28]} -> {name[:28]}", []).append(start - reach)
        if end > reach:
            reach, last = end, name
    steps = sum(len(times) for name, times in kernels.items() if "_finish_kernel" in name)  # one a step
    wall = reach - spans[0][0]
    idle = sum(map(sum, gaps.values())) / wall
    return {
        "batch": batch,
        "idle": idle,
        "step_us": wall / steps,
        "sum_us": sum(map(sum, kernels.values())) / steps,
        "kernels_a_step": len(spans) / steps,
        "kernels": _top(kernels, steps),
        "gaps": _top(gaps, steps),
    }


def _top(times: dict[str, list[float]], steps: int) -> list[dict[str, Any]]:
    ranked = sorted(times.items(), key=lambda each: -sum(each[1]))[:_TOP]
    return [
        {"name": name, "us": round(sum(each) / steps, 2), "calls": round(len(each) / steps, 2)} for name, each in ranked
    ]


def print_profile(result: dict[str, Any]) -> None:
    """The same for a reader."""
    print(
        f"GPU idle {100 * result['idle']:.1f} % at B {result['batch']}, {result['kernels_a_step']:.0f} kernels a step, "
        f"step {result['step_us']:.0f} us, kernels together {result['sum_us']:.0f} us"
    )
    for what in ("kernels", "gaps"):
        for line in result[what]:
            print(f"  {line['us']:8.1f} us in {line['calls']:6.1f} {what}  {line['name']}")
