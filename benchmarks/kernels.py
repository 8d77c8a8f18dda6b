"""Microseconds of every decode kernel against the time its bytes need, at the sizes of Qwen3-4B (MOSS-TTS-Local v1.5).

Run from the repository root on a machine with a GPU: ``python -m benchmarks.kernels``. Times are medians of graph
replays. Caches, residuals and gate/up products come from a ring of up to 512 buffers, several times the L2 cache where
they are large, so that every call reads memory; small activations stay in the cache, as they do in a step. "floor" is
bytes read and written once over the copy bandwidth measured first; a kernel that needs less than about 2 us is bound by
its launch.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from backends import kernels

HIDDEN, HEADS, KV, DIM, INNER, PAGE = 2560, 32, 8, 128, 9728, 16
LOCAL_HEADS, LOCAL_DIM, LOCAL_INNER, POSITIONS, CODES = 32, 80, 10240, 13, 1024
BATCHES, LENGTHS, SPLITS = (1, 16, 64), (100, 500, 1000), (64, 128, 256)
RING_BYTES, DTYPE = 256 << 20, torch.bfloat16

Call = Callable[[int], object]


def graph_us(call: Call, ring: int, calls: int = 64, repeats: int = 15) -> float:
    """Median microseconds of one ``call(i)``; ``i`` walks a ring of buffers."""
    for i in range(3):
        call(i % ring)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    calls = max(calls, min(ring, 512))
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i % ring)
    times = []
    for i in range(repeats + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes a microsecond of a large device-to-device copy, read and write counted."""
    source = torch.randn(1 << 30, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    took = graph_us(lambda _: target.copy_(source), 1, calls=4, repeats=7)
    return 2 * source.nbytes / took


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=DTYPE)


def ring_of(bytes_each: int, most: int = 512) -> int:
    """Buffers that a ring needs so that together they are well past the L2 cache."""
    return max(1, min(most, RING_BYTES // bytes_each + 1))


class Table:
    """Prints a line a measurement, keeps them for the JSON file."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.lines: list[dict[str, object]] = []
        print(f"{'kernel':<34}{'B':>4}{'L':>6}{'us':>9}{'floor':>9}{'of floor':>10}{'torch us':>10}")

    def add(self, name: str, batch: int, length: int, moved: float, took: float, torch_us: float | None = None) -> None:
        floor = moved / self.bandwidth
        self.lines.append(
            {"kernel": name, "batch": batch, "length": length, "us": took, "floor_us": floor, "torch_us": torch_us}
        )
        other = "" if torch_us is None else f"{torch_us:.2f}"
        shown = str(length) if length else ""
        share = f"{100 * floor / took:.0f}%"
        print(f"{name:<34}{batch:>4}{shown:>6}{took:>9.2f}{floor:>9.2f}{share:>10}{other:>10}", flush=True)


def attention(table: Table) -> None:
    for batch in BATCHES:
        for length in LENGTHS:
            held = -(-length // PAGE)
            moved = 2 * batch * length * KV * DIM * 2
            ring = ring_of(moved)
            pages = batch * held
            caches = [(draw(pages, PAGE, KV, DIM), draw(pages, PAGE, KV, DIM)) for _ in range(ring)]
            q = draw(batch, HEADS, DIM)
            # As in serving: tables hold room for 1,024 positions whatever the rows have.
            pages_of = torch.full((batch, 1024 // PAGE), -1, dtype=torch.int32, device="cuda")
            pages_of[:, :held] = torch.randperm(pages, device="cuda").view(batch, held)
            lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
            k, v = (draw(batch, KV, length, DIM) for _ in range(2))

            def dense(_: int, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> object:
                return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)

            plain = graph_us(dense, 1)
            for split in SPLITS:
                for fused in (True, False):
                    space = kernels.attention_workspace(
                        batch, HEADS, DIM, 1024 // PAGE, PAGE, torch.device("cuda"), split, fused
                    )

                    def call(i: int, space: kernels.AttentionWorkspace = space) -> object:
                        return kernels.paged_decode_attention(q, *caches[i], pages_of, lengths, DIM**-0.5, space)  # noqa: B023

                    name = f"attention {split} {'fused' if fused else 'two kernels'}"
                    table.add(name, batch, length, moved, graph_us(call, ring), plain)


def layer(table: Table, batch: int) -> None:
    """The other kernels of a backbone layer."""
    weight, small = draw(HIDDEN), draw(DIM)
    ring = ring_of(batch * HIDDEN * 4)
    x = [(draw(batch, HIDDEN), draw(batch, HIDDEN)) for _ in range(ring)]

    def plain_norm(i: int) -> object:
        return F.rms_norm(x[i][0] + x[i][1], (HIDDEN,), weight, 1e-6)

    took = graph_us(lambda i: kernels.add_rms_norm(*x[i], weight, 1e-6), ring)
    table.add("add_rms_norm", batch, 0, batch * HIDDEN * 8, took, graph_us(plain_norm, ring))

    width = (HEADS + 2 * KV) * DIM
    qkv = draw(batch, width)
    cos, sin = (torch.randn(1024, DIM, device="cuda") for _ in range(2))
    keys, values = draw(64 * batch, PAGE, KV, DIM), draw(64 * batch, PAGE, KV, DIM)
    positions = torch.randint(1024, (batch,), device="cuda")
    lines = torch.arange(batch, device="cuda") * 1024 + positions
    rope = (small, small, 1e-6, cos, sin, positions, keys, values, lines)
    took = graph_us(lambda _: kernels.qk_norm_rope_store(qkv, *rope), 1)
    table.add("qk_norm_rope_store", batch, 0, batch * (4 * width + 8 * DIM), took)

    ring = ring_of(batch * INNER * 4)
    gate_up = [draw(batch, 2 * INNER) for _ in range(ring)]

    def plain_silu(i: int) -> object:
        gate, up = gate_up[i].chunk(2, dim=-1)
        return F.silu(gate) * up

    took = graph_us(lambda i: kernels.silu_mul(gate_up[i]), ring)
    table.add("silu_mul", batch, 0, batch * INNER * 6, took, graph_us(plain_silu, ring))


def local(table: Table, batch: int) -> None:
    """The kernels of one position of the frame-local transformer, and the row key."""
    weight = draw(HIDDEN)
    x, row = draw(batch, HIDDEN), draw(HIDDEN)
    took = graph_us(lambda _: kernels.add_layer_norm(x, row, weight, weight, 1e-6), 1)
    table.add("add_layer_norm", batch, 0, batch * HIDDEN * 6, took)

    qkv = draw(batch, 3 * LOCAL_HEADS * LOCAL_DIM)
    cache = draw(2, batch, LOCAL_HEADS, POSITIONS, LOCAL_DIM)
    cos, sin = (torch.randn(POSITIONS, LOCAL_DIM // 2, device="cuda") for _ in range(2))
    last = POSITIONS - 1
    moved = qkv.nbytes * 2 + cache.nbytes
    took = graph_us(lambda _: kernels.frame_attention(qkv, cache, last, 0.1), 1)
    table.add("frame_attention absolute", batch, last, moved, took)
    took = graph_us(lambda _: kernels.frame_attention(qkv, cache, last, 0.1, cos, sin), 1)
    table.add("frame_attention rope", batch, last, moved, took)

    inner, bias = draw(batch, LOCAL_INNER), draw(LOCAL_INNER)
    plain = graph_us(lambda _: F.silu(inner + bias), 1)
    took = graph_us(lambda _: kernels.bias_activation(inner, bias, "silu"), 1)
    table.add("bias_activation silu", batch, 0, 2 * inner.nbytes, took, plain)

    logits, codes = draw(batch, CODES), draw(12 * (CODES + 1), HIDDEN)
    embedded = batch * (CODES * 2 + HIDDEN * 6)
    took = graph_us(lambda _: kernels.sample_ids(logits, None, 1), 1)
    plain = graph_us(lambda _: logits.argmax(dim=-1), 1)
    table.add("sample_ids greedy", batch, 0, logits.nbytes, took, plain)
    took = graph_us(lambda _: kernels.sample_embed(logits, None, 1, codes, 5, row, weight, weight, 1e-6), 1)
    table.add("sample_embed greedy", batch, 0, embedded, took)
    ones = torch.ones(batch, dtype=torch.int64, device="cuda")
    for name, top_k, top_p in (("no filter", 0, 1.0), ("top-k 50", 50, 1.0), ("top-k 50 top-p 0.9", 50, 0.9)):
        temperature, head = ones.double() * 0.8, ones.double() * top_p
        draws = kernels.Draws(ones, ones, temperature, ones * top_k, head, 13)

        def call(_: int, draws: kernels.Draws = draws) -> object:
            return kernels.sample_embed(logits, draws, 1, codes, 5, row, weight, weight, 1e-6)

        table.add(f"sample_embed {name}", batch, 0, embedded, graph_us(call, 1))

    rows = torch.randint(1024, (batch, 13), device="cuda")
    took = graph_us(lambda _: kernels.row_keys_kernel(rows, (2**31 - 1, 2147483629), (1_000_000_007, 998_244_353)), 1)
    table.add("row_keys_kernel", batch, 0, rows.nbytes + 16 * batch, took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the table here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device: these are the times of GPU kernels")
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {bandwidth / 1e6:.2f} TB/s; bfloat16")
    print("'torch us' of attention: dense SDPA over one cached batch, no pages")
    with torch.inference_mode():
        table = Table(bandwidth)
        for batch in BATCHES:
            layer(table, batch)
            local(table, batch)
        attention(table)
    if options.json:
        report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_bytes_per_us": bandwidth}
        options.json.write_text(json.dumps({**report, "lines": table.lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
