"""Skinny products: every program streams the weights of a few columns, once, past all rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from backends.kernels.gpu.early import early_launch, fetch
from backends.kernels.linear import TILE, LinearWorkspace, Plan


@triton.jit
def _multiply(acc, w, x, x_row, first, rows, k, inside, TILE: tl.constexpr, SWAP: tl.constexpr, EVEN_K: tl.constexpr):
    """``acc`` plus the product of weights ``w`` with the rows ``first`` ... ``first + TILE - 1`` of ``x`` at ``k``."""
    m = first + tl.arange(0, TILE)
    if SWAP:
        at = x + m[None, :] * x_row + k[:, None]
        ok = (m < rows)[None, :] if EVEN_K else (m < rows)[None, :] & inside[:, None]
        acc = tl.dot(w, tl.load(at, mask=ok, other=0.0), acc, input_precision="ieee")
    else:
        at = x + m[:, None] * x_row + k[None, :]
        ok = (m < rows)[:, None] if EVEN_K else (m < rows)[:, None] & inside[None, :]
        acc = tl.dot(tl.load(at, mask=ok, other=0.0), w, acc, input_precision="ieee")
    return acc


@triton.jit
def _finish(
    total,
    bias,
    out,
    out_row,
    m,
    block,
    rows,
    N,
    BLOCK_N: tl.constexpr,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Bias [BLOCK_N], activation and store of sums ``total`` [tile, BLOCK_N] of rows ``m``; rounds as torch does."""
    dtype = out.dtype.element_ty
    real = (m < rows)[:, None]
    if GATED:
        gate, up = tl.split(tl.reshape(total, (total.shape[0], BLOCK_N // 2, 2)))
        gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
        n = block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        to = out + m[:, None] * out_row + n[None, :]
        tl.store(to, (gate * tl.sigmoid(gate) * up).to(dtype), mask=real & (n < N // 2)[None, :])
    else:
        n = block * BLOCK_N + tl.arange(0, BLOCK_N)
        value = total
        if HAS_BIAS:
            value += bias.to(tl.float32)[None, :]
        if ACTIVATION != "none":
            value = value.to(dtype).to(tl.float32)
        if ACTIVATION == "silu":
            value = value * tl.sigmoid(value)
        elif ACTIVATION == "gelu_new":
            # 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (v + 0.044715 v^3) (Hendrycks, Gimpel 2016)
            value = value * tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
        elif ACTIVATION == "gelu":
            value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
        tl.store(out + m[:, None] * out_row + n[None, :], value.to(dtype), mask=real & (n < N)[None, :])


@triton.jit
def _sum_parts(partial, m, n, rows, N, TILE: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr):
    """The parts of a tile, added in the order of K."""
    total = tl.zeros((TILE, BLOCK_N), tl.float32)
    ok = (m < rows)[:, None] & (n < N)[None, :]
    for part in tl.static_range(SPLIT):
        at = partial + (part * rows + m)[:, None] * N + n[None, :]
        # .cg: other programs wrote these lines during this launch, so they must come from the L2 cache.
        total += tl.load(at, mask=ok, other=0.0, cache_modifier=".cg")
    return total


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x,
    weight,
    descriptor,
    bias,
    out,
    partial,
    counters,
    x_row,
    weight_row,
    out_row,
    rows,
    N,
    K,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    SPLIT: tl.constexpr,
    SWAP: tl.constexpr,
    EVEN_K: tl.constexpr,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    FUSED: tl.constexpr,
    EARLY: tl.constexpr,
    TMA: tl.constexpr,
):
    block = tl.program_id(0) // SPLIT
    part = tl.program_id(0) % SPLIT
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    # Past the end the last row is read again and its sums are not stored: cheaper than a mask in the loop.
    column = tl.minimum(n, N - 1).to(tl.int64)
    if GATED:  # rows of gate and up in turns, so that one program has both
        column = column // 2 + (column % 2) * (N // 2)
    steps = tl.cdiv(K, BLOCK_K)
    begin = steps * part // SPLIT
    end = steps * (part + 1) // SPLIT
    added = tl.load(bias + n, mask=n < N, other=0.0) if HAS_BIAS else 0.0
    if EARLY:
        # The kernel before may still run. Weights are nobody's result: 128 numbers of each row go to the L2 cache.
        # More of them, up to the depth of the pipeline, made a step 3 % slower (H200).
        line = tl.minimum(begin * BLOCK_K + tl.arange(0, 2) * 64, K - 1)
        fetch(weight + column[:, None] * weight_row + line[None, :], (column >= 0)[:, None] & (line >= 0)[None, :])
        gdc_wait()
    shape: tl.constexpr = (BLOCK_N, TILE) if SWAP else (TILE, BLOCK_N)
    acc0 = tl.zeros(shape, tl.float32)
    acc1, acc2, acc3 = acc0, acc0, acc0
    for step in range(begin, end):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = k < K
        if TMA:  # zeros past the end
            w = descriptor.load([block * BLOCK_N, step * BLOCK_K])
            if not SWAP:
                w = tl.trans(w)
        else:
            if SWAP:
                at = weight + column[:, None] * weight_row + k[None, :]
                ok = inside[None, :]
            else:
                at = weight + column[None, :] * weight_row + k[:, None]
                ok = inside[:, None]
            if EVEN_K:
                w = tl.load(at)
            else:
                w = tl.load(at, mask=ok, other=0.0)
        acc0 = _multiply(acc0, w, x, x_row, 0, rows, k, inside, TILE, SWAP, EVEN_K)
        if TILES > 1:
            acc1 = _multiply(acc1, w, x, x_row, TILE, rows, k, inside, TILE, SWAP, EVEN_K)
        if TILES > 2:
            acc2 = _multiply(acc2, w, x, x_row, 2 * TILE, rows, k, inside, TILE, SWAP, EVEN_K)
        if TILES > 3:
            acc3 = _multiply(acc3, w, x, x_row, 3 * TILE, rows, k, inside, TILE, SWAP, EVEN_K)
    if EARLY:
        # Not sooner: a next kernel that waits holds room, and what it fetches competes with the weights of this one.
        gdc_launch_dependents()
    for tile in tl.static_range(TILES):
        acc = acc0 if tile == 0 else (acc1 if tile == 1 else (acc2 if tile == 2 else acc3))
        if SWAP:
            acc = tl.trans(acc)
        m = tile * TILE + tl.arange(0, TILE)
        if SPLIT == 1:
            _finish(acc, added, out, out_row, m, block, rows, N, BLOCK_N, GATED, HAS_BIAS, ACTIVATION)
        else:
            to = partial + (part * rows + m)[:, None] * N + n[None, :]
            tl.store(to, acc, mask=(m < rows)[:, None] & (n < N)[None, :])
    if FUSED:
        # All threads have stored, then one of them announces it; whoever announces last adds all the parts.
        tl.debug_barrier()
        if tl.atomic_add(counters + block, 1, sem="acq_rel") == SPLIT - 1:
            for tile in tl.static_range(TILES):
                m = tile * TILE + tl.arange(0, TILE)
                total = _sum_parts(partial, m, n, rows, N, TILE, BLOCK_N, SPLIT)
                _finish(total, added, out, out_row, m, block, rows, N, BLOCK_N, GATED, HAS_BIAS, ACTIVATION)
            tl.store(counters + block, 0)


@triton.jit(do_not_specialize=["rows"])
def _combine_kernel(
    bias,
    out,
    partial,
    out_row,
    rows,
    N,
    BLOCK_N: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr,
):
    block = tl.program_id(0)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    added = tl.load(bias + n, mask=n < N, other=0.0) if HAS_BIAS else 0.0
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    m = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = _sum_parts(partial, m, n, rows, N, TILE, BLOCK_N, SPLIT)
    _finish(total, added, out, out_row, m, block, rows, N, BLOCK_N, GATED, HAS_BIAS, ACTIVATION)


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    workspace: LinearWorkspace | None,
    out: Tensor | None,
    plan: Plan,
) -> Tensor:
    """See :func:`backends.kernels.linear.skinny_linear`. One launch, or two."""
    return _launch(x, weight, bias, activation, workspace, out, plan, gated=False)


def gate_up_silu(
    x: Tensor, weight: Tensor, workspace: LinearWorkspace | None, out: Tensor | None, plan: Plan
) -> Tensor:
    """See :func:`backends.kernels.linear.gate_up_silu`. One launch, or two."""
    return _launch(x, weight, None, None, workspace, out, plan, gated=True)


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    workspace: LinearWorkspace | None,
    out: Tensor | None,
    plan: Plan,
    gated: bool,
) -> Tensor:
    (rows, k), n = x.shape, weight.shape[0]
    if plan.swap and x.is_cuda and plan.block_n % 64:
        raise ValueError(f"block_n {plan.block_n} is not a multiple of 64, which wgmma needs")
    if out is None:
        out = torch.empty((rows, n // 2 if gated else n), dtype=x.dtype, device=x.device)
    blocks, fused = triton.cdiv(n, plan.block_n), plan.split > 1 and plan.fused and workspace is not None
    partial, counters = x, x  # unread where one program has the whole sum
    if plan.split > 1:
        needed = plan.split * rows * n
        if workspace is None:
            partial = torch.empty(needed, dtype=torch.float32, device=x.device)
        else:
            partial, counters = workspace.partial, workspace.counters
            if partial.numel() < needed or counters.numel() < blocks:
                raise ValueError(f"workspace of {partial.numel()} floats is too small: {needed}, {blocks} counters")
    tma = plan.tma and not gated
    kinds = {"GATED": gated, "HAS_BIAS": bias is not None, "ACTIVATION": activation or "none"}
    early = early_launch(x)
    _linear_kernel[(blocks * plan.split,)](
        x,
        weight,
        TensorDescriptor.from_tensor(weight, [plan.block_n, plan.block_k]) if tma else weight,
        x if bias is None else bias,
        out,
        partial,
        counters,
        x.stride(0),
        weight.stride(0),
        out.stride(0),
        rows,
        n,
        k,
        BLOCK_N=plan.block_n,
        BLOCK_K=plan.block_k,
        TILE=plan.tile,
        TILES=triton.cdiv(rows, plan.tile),
        SPLIT=plan.split,
        SWAP=plan.swap,
        EVEN_K=k % plan.block_k == 0,
        FUSED=fused,
        TMA=tma,
        num_warps=plan.warps,
        num_stages=plan.stages if rows <= plan.tile else plan.wide_stages,
        **kinds,
        **early,
    )
    if plan.split > 1 and not fused:
        _combine_kernel[(blocks, triton.cdiv(rows, TILE))](
            x if bias is None else bias,
            out,
            partial,
            out.stride(0),
            rows,
            n,
            BLOCK_N=plan.block_n,
            TILE=TILE,
            SPLIT=plan.split,
            num_warps=4,
            **kinds,
            **early,
        )
    return out
