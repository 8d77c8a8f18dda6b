"""Norm, rotation and store of one step's queries, keys and values: one program for a few heads of a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.gpu.early import early_launch, fetch

_HEADS = 8  # heads a program: 1,024 elements of 128, 16 bytes a thread in 16 bits


@triton.jit
def _qkv_kernel(
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    positions,
    lines,
    q,
    keys,
    values,
    qkv_row,
    cos_row,
    cos_rows,
    eps,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, D)
    partner = (d + D // 2) % D
    inside = (head < H + 2 * KV)[:, None]
    is_q = (head < H)[:, None]
    is_v = (head >= H + KV)[:, None]
    weight_at = tl.where(is_q, q_weight, k_weight)
    weight = tl.load(weight_at + d[None, :]).to(tl.float32)
    other_weight = tl.load(weight_at + partner[None, :]).to(tl.float32)
    if EARLY:
        row_at = tl.minimum(tl.maximum(tl.load(positions + row, cache_modifier=".cg"), 0), cos_rows - 1) * cos_row
        fetch(cos + row_at + d, d % 32 == 0)
        fetch(sin + row_at + d, d % 32 == 0)
        gdc_wait()
        gdc_launch_dependents()
    position = tl.load(positions + row)
    line = tl.load(lines + row)
    base = qkv + row * qkv_row + head[:, None] * D
    raw = tl.load(base + d[None, :], mask=inside, other=0.0)
    x = raw.to(tl.float32)
    other = tl.load(base + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    c = tl.load(cos + position * cos_row + d).to(tl.float32)[None, :]
    s = tl.load(sin + position * cos_row + d).to(tl.float32)[None, :]
    s = tl.where((d < D // 2)[None, :], -s, s)
    rotated = (x * scale * weight) * c + (other * scale * other_weight) * s
    tl.store(q + (row * H + head)[:, None] * D + d[None, :], rotated.to(q.dtype.element_ty), mask=is_q)
    key_at = (line * KV + head - H)[:, None] * D + d[None, :]
    is_k = inside & (is_q == 0) & (is_v == 0)
    tl.store(keys + key_at, rotated.to(keys.dtype.element_ty), mask=is_k)
    value_at = (line * KV + head - H - KV)[:, None] * D + d[None, :]
    tl.store(values + value_at, raw.to(values.dtype.element_ty), mask=inside & is_v)


def qk_norm_rope_store(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    lines: Tensor,
) -> Tensor:
    """See :func:`backends.kernels.rope.qk_norm_rope_store`. One launch."""
    count = len(qkv)
    _, _, kv_heads, dim = keys.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    if qkv.stride(1) != 1 or cos.stride() != sin.stride() or cos.stride(1) != 1 or dim & (dim - 1):
        raise ValueError(f"qkv {qkv.stride()}, cos {cos.stride()}, sin {sin.stride()}, head dim {dim} are not covered")
    q = torch.empty((count, heads, dim), dtype=qkv.dtype, device=qkv.device)
    if count == 0:
        return q
    _qkv_kernel[(count, triton.cdiv(heads + 2 * kv_heads, _HEADS))](
        qkv,
        q_weight,
        k_weight,
        cos,
        sin,
        positions,
        lines,
        q,
        keys,
        values,
        qkv.stride(0),
        cos.stride(0),
        len(cos),
        eps,
        H=heads,
        KV=kv_heads,
        D=dim,
        HEADS=_HEADS,
        num_warps=4 if dim > 64 else 2,
        **early_launch(qkv),
    )
    return q
