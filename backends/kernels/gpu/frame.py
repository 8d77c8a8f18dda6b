"""Attention inside one frame: one program a row and head, all positions in one tile."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.gpu.early import early_launch


# A position is one of a few small integers: one kernel for all of them, not one for 1 and one for multiples of 16.
@triton.jit(do_not_specialize=["position"])
def _frame_kernel(
    qkv,
    cache,
    cos,
    sin,
    out,
    position,
    scale,
    qkv_row,
    values_at,
    HEADS: tl.constexpr,
    POSITIONS: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    KEYS: tl.constexpr,
    ROPE: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, DP)
    inside = d < D
    dtype = qkv.dtype.element_ty
    if ROPE:
        c = tl.load(cos + position * (D // 2) + d // 2, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + position * (D // 2) + d // 2, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    base = qkv + row * qkv_row + head * D
    q = tl.load(base + d, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(base + HEADS * D + d, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(base + 2 * HEADS * D + d, mask=inside, other=0.0).to(tl.float32)
    if ROPE:
        partner = d ^ 1
        q_other = tl.load(base + partner, mask=inside, other=0.0).to(tl.float32)
        k_other = tl.load(base + HEADS * D + partner, mask=inside, other=0.0).to(tl.float32)
        s = tl.where(d % 2 == 0, -s, s)
        q = (q * c + q_other * s).to(dtype).to(tl.float32)
        k = (k * c + k_other * s).to(dtype).to(tl.float32)
    line = (row * HEADS + head) * POSITIONS
    tl.store(cache + (line + position) * D + d, k.to(dtype), mask=inside)
    tl.store(cache + values_at + (line + position) * D + d, v.to(dtype), mask=inside)
    # Earlier positions from the cache, this one from registers: what this program stored need not be visible to it.
    p = tl.arange(0, KEYS)
    earlier = (p < position)[:, None] & inside[None, :]
    at = (line + p)[:, None] * D + d[None, :]
    now = (p == position)[:, None]
    keys = tl.where(now, k[None, :], tl.load(cache + at, mask=earlier, other=0.0).to(tl.float32))
    values = tl.where(now, v[None, :], tl.load(cache + values_at + at, mask=earlier, other=0.0).to(tl.float32))
    scores = tl.where(p <= position, tl.sum(keys * q[None, :], 1) * scale, float("-inf"))
    weight = tl.exp(scores - tl.max(scores, 0))
    weight = weight / tl.sum(weight, 0)
    mixed = tl.sum(weight[:, None] * values, 0)
    tl.store(out + (row * HEADS + head) * D + d, mixed.to(dtype), mask=inside)


def frame_attention(
    qkv: Tensor, cache: Tensor, position: int, scale: float, cos: Tensor | None = None, sin: Tensor | None = None
) -> Tensor:
    """See :func:`backends.kernels.frame.frame_attention`. One launch."""
    _, batch, heads, positions, dim = cache.shape
    if qkv.stride(1) != 1 or qkv.dtype != cache.dtype:
        raise ValueError(f"qkv has strides {qkv.stride()} and {qkv.dtype}, the cache {cache.dtype}")
    for table in (cos, sin):
        if table is not None and (table.shape[1] != dim // 2 or not table.is_contiguous()):
            raise ValueError(f"cos and sin are contiguous [positions, {dim // 2}], not {tuple(table.shape)}")
    out = torch.empty((batch, heads * dim), dtype=qkv.dtype, device=qkv.device)
    if batch == 0:
        return out
    padded = triton.next_power_of_2(dim)
    keys = triton.next_power_of_2(positions)
    _frame_kernel[(batch, heads)](
        qkv,
        cache,
        qkv if cos is None else cos,
        qkv if sin is None else sin,
        out,
        position,
        scale,
        qkv.stride(0),
        cache.stride(0),
        HEADS=heads,
        POSITIONS=positions,
        D=dim,
        DP=padded,
        KEYS=keys,
        ROPE=cos is not None,
        num_warps=1 if padded * keys <= 2048 else 4,
        **early_launch(qkv),
    )
    return out
