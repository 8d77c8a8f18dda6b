"""Products of a few rows with a large matrix: what a decode step spends most of its time on.

A product of at most 64 rows reads every weight once and does little with it, so it takes the time its weights need to
arrive. On CUDA a kernel of our own streams them. A row's sum does not depend on how many rows there are or on which
place it has, by construction: rows stand in tiles of 16 that are summed by the same instructions, padded with zeros;
where the sum over K is cut follows from the plan of the matrix, and the parts are added in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.kernels.activation import ACTIVATIONS, silu_mul

MAX_ROWS = 64
TILE = 16  # rows that one product of the tensor cores takes
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a matrix [N, K] is streamed. The bits of a result depend on ``block_k``, ``split`` and ``swap`` alone.

    ``block_n`` x ``block_k`` weights are read at a time; ``split`` programs share a sum over K; ``swap`` makes the
    weights the first factor of the product (wgmma, needs a ``block_n`` of 64), else the second (mma). ``stages`` is the
    depth of the pipeline, ``wide_stages`` the same for more than 16 rows. ``fused``: the last of the ``split`` programs
    to arrive adds the parts, if the caller lends a workspace; else a second kernel does. ``tile``: rows of one product,
    for experiments; anything but 16 gives up that the bits are the same by construction.
    ``tma``: weights through the tensor memory accelerator (not for gate_up_silu, which reads its rows in turns).
    """

    block_n: int = 64
    block_k: int = 128
    split: int = 1
    swap: bool = True
    warps: int = 4
    stages: int = 3
    wide_stages: int = 3
    fused: bool = True
    tile: int = TILE
    tma: bool = False


# Measured by benchmarks/skinny.py; keyed by (N, K). A matrix that is not here gets plan_for's guess.
PLANS: dict[tuple[int, int], Plan] = {  # MOSS-TTS-Local v1.5 on an H200, docs/results/skinny-h200.json
    (19456, 2560): Plan(block_k=64, stages=6, wide_stages=4),  # gate and up
    (2560, 9728): Plan(split=3, stages=5, wide_stages=5),  # down
    (6144, 2560): Plan(block_k=64, stages=10, wide_stages=5),  # q, k, v
    (2560, 4096): Plan(split=3, stages=5, wide_stages=4),  # attention out
    (10240, 2560): Plan(block_k=64, stages=6, wide_stages=5, tma=True),  # frame: fc_in
    (2560, 10240): Plan(split=3, stages=5, wide_stages=5, tma=True),  # frame: fc_out
    (7680, 2560): Plan(stages=5, wide_stages=5, tma=True),  # frame: q, k, v
    (2560, 2560): Plan(block_k=64, split=3, stages=10, wide_stages=5),  # frame: attention out
    (1024, 2560): Plan(block_k=64, split=8, stages=6, wide_stages=4),  # a codebook's head
}

_PROGRAMS = 264  # two for each multiprocessor of an H200


def plan_for(n: int, k: int) -> Plan:
    """The plan of a matrix [``n``, ``k``]: measured, or enough programs of 64 columns to fill an H200 twice."""
    known = PLANS.get((n, k))
    if known is not None:
        return known
    steps = -(-k // 128)
    split = max(1, min(8, steps // 2, round(_PROGRAMS / -(-n // 64))))
    return Plan(split=split)


@dataclass(frozen=True, slots=True)
class LinearWorkspace:
    """Where programs that share a sum leave their parts. Calls on one stream may share it.

    ``partial`` float32, flat; ``counters`` int32, flat, zero between calls.
    """

    partial: Tensor
    counters: Tensor


def linear_workspace(shapes: Iterable[tuple[int, int]], device: torch.device, rows: int = MAX_ROWS) -> LinearWorkspace:
    """Workspace for products of up to ``rows`` rows with matrices of the given ``shapes`` (N, K) under their plans."""
    floats = tiles = 0
    for n, k in shapes:
        plan = plan_for(n, k)
        floats = max(floats, plan.split * rows * n)
        tiles = max(tiles, -(-n // plan.block_n))
    partial = torch.empty(floats, dtype=torch.float32, device=device)
    return LinearWorkspace(partial, torch.zeros(tiles, dtype=torch.int32, device=device))


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    workspace: LinearWorkspace | None = None,
    out: Tensor | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """``activation(x @ weight.T + bias)`` for ``x`` [M, K] of 1 ... 64 rows, ``weight`` [N, K] as ``nn.Linear`` has it.

    N and K multiples of 16; ``bias`` [N]; ``activation`` silu, gelu_new, gelu or None; bfloat16, float16 or float32,
    all of one dtype. The sum and the bias in float32, rounded once; the activation in float32 of that, rounded again.
    Without a ``workspace`` a sum in several parts takes a second kernel, of the same bits. Returns ``out`` [M, N], made
    here if not given. Raises ValueError for what the kernel does not cover.
    """
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {sorted(ACTIVATIONS)}")
    _check(x, weight, bias, out, weight.shape[0])
    if x.is_cuda:
        from backends.kernels.gpu import linear as gpu

        return gpu.skinny_linear(x, weight, bias, activation, workspace, out, plan or plan_for(*weight.shape))
    return _rows(x, weight, bias, None if activation is None else ACTIVATIONS[activation], out)


def gate_up_silu(
    x: Tensor,
    weight: Tensor,
    workspace: LinearWorkspace | None = None,
    out: Tensor | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """``silu(x @ gate.T) * (x @ up.T)`` [M, I] for ``weight`` [2 I, K], gate over up; 2 I a multiple of 16.

    Both products are rounded to the dtype of ``x`` first, as in :func:`skinny_linear` followed by :func:`silu_mul`, so
    that the two ways give the same bits under one plan. Programs read the rows of gate and up in turns: the weights
    stay as they are.
    """
    _check(x, weight, None, out, weight.shape[0] // 2)
    if x.is_cuda:
        from backends.kernels.gpu import linear as gpu

        return gpu.gate_up_silu(x, weight, workspace, out, plan or plan_for(*weight.shape))
    return _rows(x, weight, None, silu_mul, out)


def _rows(
    x: Tensor, weight: Tensor, bias: Tensor | None, after: Callable[[Tensor], Tensor] | None, out: Tensor | None
) -> Tensor:
    """Row by row: with more rows a library may sum in another order, and end a vector loop at another element."""
    rows = [F.linear(row, weight, bias) for row in x.split(1)]
    if after is not None:
        rows = [after(row.float()).to(x.dtype) for row in rows]
    return torch.cat(rows) if out is None else out.copy_(torch.cat(rows))


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None, width: int) -> None:
    (count, k), n = x.shape, weight.shape[0]
    if not 1 <= count <= MAX_ROWS:
        raise ValueError(f"x has {count} rows; 1 to {MAX_ROWS} are covered")
    if weight.shape[1] != k or n % 16 or k % 16:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit in multiples of 16")
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"bias {tuple(bias.shape)} does not fit weight {tuple(weight.shape)}")
    tensors = [tensor for tensor in (x, weight, bias, out) if tensor is not None]
    if x.dtype not in _DTYPES or any(tensor.dtype != x.dtype for tensor in tensors):
        raise ValueError(f"dtypes {[tensor.dtype for tensor in tensors]}: one of {_DTYPES} is needed for all")
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError("x, weight, bias and out must be contiguous in their last dimension")
    if out is not None and out.shape != (count, width):
        raise ValueError(f"out {tuple(out.shape)} is not {(count, width)}")
