"""Finds the plans of backends/kernels/linear.py: microseconds of every candidate at MOSS-TTS-Local v1.5's matrices.

Run from the repository root on a machine with a GPU: ``python -m benchmarks.skinny --json FILE``; under two minutes on
an H200 with 16 cores. Candidates are compiled first, in as many processes as there are cores. Times are medians of
graph replays over a ring of weights of at least 512 MiB and 8 copies, so that every call reads them from memory.
"cuBLAS" is ``F.linear`` with everything it launches, "step" the same with the activation kernel that follows it today,
"two" the parts of a sum added by a second kernel, "early" with programmatic dependent launch among its own kind.
Ends with lines to paste into PLANS.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from backends import kernels
from backends.kernels.linear import Plan, skinny_linear
from benchmarks.kernels import copy_bandwidth, graph_us
from benchmarks.sitting import sitting
from benchmarks.skinny_plans import MATRICES, Compiler, Matrix, draw, product, short, space, variants, wider

RING_BYTES, FINALISTS = 512 << 20, 4


class Bench:
    """One matrix at a time: its ring of weights, its candidates, the best of them."""

    def __init__(self, bandwidth: float, compiler: Compiler) -> None:
        self.bandwidth, self.compiler, self.lent = bandwidth, compiler, space()
        self.lines: list[dict[str, Any]] = []

    def load(self, matrix: Matrix) -> None:
        self.matrix, nbytes = matrix, matrix.n * matrix.k * 2
        self.ring = []  # the last matrix's, before there are more
        self.ring = [draw(matrix.n, matrix.k) for _ in range(max(8, RING_BYTES // nbytes + 1))]
        self.bias = draw(matrix.n) if matrix.bias else None
        self.x = {rows: draw(rows, matrix.k) for rows in (1, 16, 64)}
        self.floor = nbytes / self.bandwidth

    def us(self, rows: int, plan: Plan, repeats: int = 5, early: bool = False) -> float:
        if (self.matrix, 16 if rows == 1 else rows, plan) in self.compiler.failed:
            return float("inf")
        x = self.x[rows]

        def call(i: int) -> object:
            return product(self.matrix, x, self.ring[i], self.bias, self.lent, plan)

        from backends.kernels.gpu.early import allow_early_launch

        allow_early_launch(early)
        took = graph_us(call, len(self.ring), calls=32, repeats=repeats)
        allow_early_launch(False)
        return took

    def today(self, rows: int) -> tuple[float, float]:
        """Microseconds of cuBLAS, and with the activation that follows."""
        x, kind = self.x[rows], self.matrix.kind
        ring, bias = self.ring, self.bias

        def step(i: int) -> object:
            y = F.linear(x, ring[i], bias)
            if kind == "gated":
                return kernels.silu_mul(y)
            return kernels.bias_activation(y, None, "silu") if kind == "silu" else y

        plain = graph_us(lambda i: F.linear(x, ring[i], bias), len(ring), calls=32, repeats=9)
        return plain, plain if kind == "plain" else graph_us(step, len(ring), calls=32, repeats=9)

    def errors(self, rows: int, plan: Plan) -> tuple[float, float, bool]:
        """Largest error over the largest value, ours and cuBLAS's (no activation); does a row alone give its bits."""
        x, w = self.x[rows], self.ring[0]
        want = F.linear(x.float(), w.float(), None if self.bias is None else self.bias.float())
        plain = skinny_linear(x, w, self.bias, None, self.lent, plan=plan)
        top, ours = want.abs().max(), (plain.float() - want).abs().max()
        theirs = (F.linear(x, w, self.bias).float() - want).abs().max()
        whole = product(self.matrix, x, w, self.bias, self.lent, plan)
        alone = [product(self.matrix, x[i : i + 1], w, self.bias, self.lent, plan) for i in range(rows)]
        return float(ours / top), float(theirs / top), torch.equal(torch.cat(alone), whole)

    def sweep(self) -> list[tuple[float, Plan]]:
        """The best at 16 rows, and their microseconds."""
        matrix = self.matrix
        first = sorted(((self.us(16, plan), plan) for plan in matrix.candidates()), key=lambda pair: pair[0])
        print(f"\n{matrix.name} [{matrix.n}, {matrix.k}], floor {self.floor:.2f} us; best of {len(first)} at 16 rows:")
        for took, plan in first[:4]:
            print(f"  {took:7.2f} us  {short(plan)}")
        kinds = {"wgmma": lambda p: p.swap and not p.tma, "mma": lambda p: not p.swap, "tma": lambda p: p.tma}
        best = {kind: min((took for took, plan in first if of(plan)), default=0.0) for kind, of in kinds.items()}
        print("  best " + ", ".join(f"{kind} {took:.2f}" for kind, took in best.items()), flush=True)
        return first[:FINALISTS]

    def choose(self, finalists: list[tuple[float, Plan]]) -> Plan:
        """The plan with the least of twice the time at 16 rows and the time at 64, its depth chosen for 64."""
        finals = [(2 * took + self.us(64, wide), wide) for took, plan in finalists for wide in wider(plan)]
        return min(finals, key=lambda pair: pair[0])[1]

    def report(self, plan: Plan) -> None:
        matrix = self.matrix
        for rows in (1, 16, 64):
            cublas, today = self.today(rows)
            took = self.us(rows, plan, 15)
            two = self.us(rows, replace(plan, fused=False), 15) if plan.split > 1 else None
            early = self.us(rows, plan, 15, early=True)
            ours, theirs, same = self.errors(rows, plan)
            line = {"name": matrix.name, "n": matrix.n, "k": matrix.k, "rows": rows, "cublas_us": cublas}
            line |= {"step_us": today, "us": took, "two_kernels_us": two, "early_us": early, "plan": asdict(plan)}
            line |= {"tb_s": matrix.n * matrix.k * 2e-6 / took, "floor_us": self.floor, "share": self.floor / took}
            line |= {"error": ours, "cublas_error": theirs, "row_alone_same": same, "calls": matrix.calls}
            if rows == 64:  # one product of 64 rows instead of four of 16
                flat = replace(plan, tile=64)
                line["tile_64_us"] = self.us(rows, flat, 15)
                both = [product(matrix, self.x[64], self.ring[0], self.bias, self.lent, p) for p in (plan, flat)]
                line["tile_64_same"] = torch.equal(*both)
            self.lines.append(line)


def table(lines: list[dict[str, Any]]) -> None:
    heads = "us two early TB/s share cuBLAS step error cuBLAS' alone= tile64 tile64="
    print(f"\n{'matrix':<11}{'M':>3}" + "".join(f"{head:>9}" for head in heads.split()))
    for line in lines:
        numbers = [line["us"], line["two_kernels_us"], line["early_us"], line["tb_s"], line["share"], line["cublas_us"]]
        shown = [f"{n:.2f}" if n is not None else "-" for n in (*numbers, line["step_us"])]
        shown += [f"{line['error']:.1e}", f"{line['cublas_error']:.1e}", str(line["row_alone_same"])]
        wide = line.get("tile_64_us")
        shown += ["-", "-"] if wide is None else [f"{wide:.2f}", str(line["tile_64_same"])]
        print(f"{line['name']:<11}{line['rows']:>3}" + "".join(f"{item:>9}" for item in shown))
    for rows in (1, 16, 64):
        of = [line for line in lines if line["rows"] == rows]
        ours, early, today = (sum(i[key] * i["calls"] for i in of) / 1e3 for key in ("us", "early_us", "step_us"))
        print(f"all products of a step at {rows} rows: {ours:.3f} ms, early {early:.3f} ms, today {today:.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the table here")
    parser.add_argument("--only", help="names of matrices, comma-separated")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device: these are the times of GPU kernels")
    began, names = time.monotonic(), options.only.split(",") if options.only else None
    matrices = [matrix for matrix in MATRICES if names is None or matrix.name in names]
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode(), Compiler() as compiler:
        count = compiler.run((m, 16, plan) for m in matrices for plan in m.candidates())
        print(f"{count} candidates compiled in {time.monotonic() - began:.0f} s; {len(compiler.failed)} do not fit")
        for why in sorted(set(compiler.failed.values()))[:5]:
            print(f"  {why}")
        bandwidth = copy_bandwidth()
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {bandwidth / 1e6:.2f} TB/s; bfloat16")
        bench, finalists, best = Bench(bandwidth, compiler), {}, {}
        for matrix in matrices:
            bench.load(matrix)
            finalists[matrix] = bench.sweep()
        print(f"\n{time.monotonic() - began:.0f} s", flush=True)
        compiler.run((m, 64, wide) for m in matrices for _, plan in finalists[m] for wide in wider(plan))
        for matrix in matrices:
            bench.load(matrix)
            best[matrix] = bench.choose(finalists[matrix])
        compiler.run(task for matrix in matrices for task in variants(matrix, best[matrix]))
        print(f"{time.monotonic() - began:.0f} s", flush=True)
        for matrix in matrices:
            bench.load(matrix)
            bench.report(best[matrix])
            save(options, bandwidth, bench.lines)
    table(bench.lines)
    print("\nfor PLANS in backends/kernels/linear.py:")
    for matrix in matrices:
        print(f"    ({matrix.n}, {matrix.k}): {short(best[matrix])},  # {matrix.name}")
    print(f"{time.monotonic() - began:.0f} s; median share {statistics.median(i['share'] for i in bench.lines):.2f}")


def save(options: argparse.Namespace, bandwidth: float, lines: list[dict[str, Any]]) -> None:
    if options.json is not None:
        report = {**sitting(options), "copy_bytes_per_us": bandwidth}
        options.json.write_text(json.dumps({**report, "lines": lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
