"""Candidates of benchmarks/skinny.py: which matrices, which plans, and their compilation in many processes at once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from types import TracebackType

import torch
from torch import Tensor

from backends.kernels.linear import LinearWorkspace, Plan, gate_up_silu, skinny_linear

DTYPE = torch.bfloat16

SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
# block_n, block_k, swap, warps, stages, tma; a stage holds 2 block_k (block_n + 16) bytes, a multiprocessor 227 KiB.
SHAPES_OF_TILES = (
    (64, 128, True, 4, 3, False),
    (64, 128, True, 4, 4, False),
    (64, 128, True, 4, 5, False),
    (64, 64, True, 4, 6, False),
    (64, 64, True, 4, 10, False),
    (64, 256, True, 4, 5, False),
    (128, 64, True, 4, 4, False),
    (128, 64, True, 4, 6, False),
    (128, 128, True, 4, 3, False),
    (128, 128, True, 8, 3, False),
    (128, 128, True, 8, 6, False),
    (256, 64, True, 8, 6, False),
    (16, 256, False, 2, 5, False),
    (16, 512, False, 4, 4, False),
    (32, 128, False, 4, 7, False),
    (32, 256, False, 4, 4, False),
    (32, 256, False, 4, 7, False),
    (64, 128, False, 4, 4, False),
    (64, 128, False, 4, 6, False),
    (64, 128, True, 4, 3, True),
    (64, 128, True, 4, 5, True),
    (64, 64, True, 4, 6, True),
    (128, 64, True, 4, 6, True),
    (128, 128, True, 8, 3, True),
    (32, 256, False, 4, 4, True),
)


@dataclass(frozen=True)
class Matrix:
    name: str
    n: int
    k: int
    calls: int  # in one decode step: 36 layers, or 12 positions of a frame
    bias: bool = False
    kind: str = "plain"  # gated: gate_up_silu; silu: the activation in the epilogue

    def candidates(self) -> list[Plan]:
        """Every tile with the three splits that come closest to one, two and three programs a multiprocessor."""
        plans: dict[Plan, None] = {}
        for block_n, block_k, swap, warps, stages, tma in SHAPES_OF_TILES:
            if tma and self.kind == "gated":
                continue
            blocks, steps = -(-self.n // block_n), -(-self.k // block_k)
            fits = [split for split in SPLITS if split == 1 or steps // split >= 2]
            for goal in (132, 264, 396):
                split = min(fits, key=lambda s: abs(blocks * s - goal))
                wide = max(2, min(stages, 200_000 // (2 * block_k * (block_n + 64))))
                plans[Plan(block_n, block_k, split, swap, warps, stages, wide, tma=tma)] = None
        return list(plans)


MATRICES = (
    Matrix("gate_up", 19456, 2560, 36, kind="gated"),
    Matrix("down", 2560, 9728, 36),
    Matrix("qkv", 6144, 2560, 36),
    Matrix("o", 2560, 4096, 36),
    Matrix("fc_in", 10240, 2560, 12, bias=True, kind="silu"),
    Matrix("fc_out", 2560, 10240, 12, bias=True),
    Matrix("local qkv", 7680, 2560, 12, bias=True),
    Matrix("proj", 2560, 2560, 12, bias=True),
    Matrix("head", 1024, 2560, 12),
)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=DTYPE)


def space() -> LinearWorkspace:
    return LinearWorkspace(
        torch.empty(16 * 64 * 19456, device="cuda"), torch.zeros(2048, dtype=torch.int32, device="cuda")
    )


def product(matrix: Matrix, x: Tensor, w: Tensor, bias: Tensor | None, lent: LinearWorkspace, plan: Plan) -> Tensor:
    if matrix.kind == "gated":
        return gate_up_silu(x, w, lent, plan=plan)
    return skinny_linear(x, w, bias, "silu" if matrix.kind == "silu" else None, lent, plan=plan)


_LENT: list[LinearWorkspace] = []


def compile_one(task: tuple[Matrix, int, Plan]) -> str | None:
    """Runs one candidate, so that its code lies in triton's cache. Returns what went wrong."""
    matrix, rows, plan = task
    from backends.kernels.gpu.early import allow_early_launch

    allow_early_launch(False)
    try:
        if not _LENT:
            _LENT.append(space())
        x, w = draw(rows, matrix.k), torch.empty(matrix.n, matrix.k, device="cuda", dtype=DTYPE)
        product(matrix, x, w, draw(matrix.n) if matrix.bias else None, _LENT[0], plan)
        torch.cuda.synchronize()
    except Exception as error:  # a candidate that does not fit the device is no candidate
        return f"{type(error).__name__}: {str(error)[:120]}"
    return None


class Compiler:
    """A process a core, each with a context of its own; what was compiled is found in triton's cache on disk."""

    def __init__(self) -> None:
        self.failed: dict[tuple[Matrix, int, Plan], str] = {}
        self._seen: dict[tuple[object, ...], str | None] = {}
        cores = min(14, os.cpu_count() or 1)
        self._pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Iterable[tuple[Matrix, int, Plan]]) -> int:
        """Compile what is new and note what fails. Matrices whose code is the same share it. Returns how many."""
        keys = {task: self._key(*task) for task in tasks}
        fresh = {key: task for task, key in keys.items() if key not in self._seen}
        for key, why in zip(fresh, self._pool.map(compile_one, fresh.values(), chunksize=2), strict=True):
            self._seen[key] = why
        for task, key in keys.items():
            why = self._seen[key]
            if why is not None:
                self.failed[task] = why
        return len(fresh)

    @staticmethod
    def _key(matrix: Matrix, rows: int, plan: Plan) -> tuple[object, ...]:
        return -(-rows // plan.tile), plan, matrix.bias, matrix.kind, matrix.k % plan.block_k == 0


def short(plan: Plan) -> str:
    """The plan as source, defaults left out."""
    plain = asdict(Plan())
    return f"Plan({', '.join(f'{key}={value}' for key, value in asdict(plan).items() if value != plain[key])})"


def wider(plan: Plan) -> list[Plan]:
    """The plan with every depth for 64 rows that fits shared memory."""
    stage = 2 * plan.block_k * (plan.block_n + 64)
    return [replace(plan, wide_stages=count) for count in (2, 3, 4, 5) if stage * count <= 225_000] or [plan]


def variants(matrix: Matrix, plan: Plan) -> list[tuple[Matrix, int, Plan]]:
    """Everything that the report of a chosen plan runs."""
    bare = replace(matrix, kind="plain")
    tasks = [(which, rows, plan) for which in (matrix, bare) for rows in (16, 64)]
    if plan.split > 1:
        tasks += [(matrix, rows, replace(plan, fused=False)) for rows in (16, 64)]
    return [*tasks, (matrix, 64, replace(plan, tile=64))]
