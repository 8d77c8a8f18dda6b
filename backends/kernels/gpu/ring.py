"""Rings of keys and values: rotation and store, and flash attention over a window.

Tiles of keys begin at multiples of a constant position of the stream, and a tile that a query does not see changes
neither its maximum nor its sums by a bit. So a query adds the same numbers in the same order whatever the chunk.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_HEADS = 8  # heads a program of the store: 512 elements of 64
_KEYS = 64  # keys a tile; a constant, so that where a window is cut depends on positions and on nothing else


@triton.jit(do_not_specialize=["steps"])
def _store_kernel(
    qkv,
    cos,
    sin,
    starts,
    slots,
    q,
    keys,
    values,
    steps,
    H: tl.constexpr,
    D: tl.constexpr,
    LINES: tl.constexpr,
    HEADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    stream = row // steps
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    half: tl.constexpr = D // 2
    d = tl.arange(0, half)[None, :]
    inside = head < 3 * H
    line = (tl.load(starts + stream) + row - stream * steps) % LINES
    slot = tl.load(slots + stream)
    base = qkv + row * (3 * H * D) + head * D + d
    first = tl.load(base, mask=inside, other=0.0)
    second = tl.load(base + half, mask=inside, other=0.0)
    c = tl.load(cos + row * half + d)
    s = tl.load(sin + row * half + d)
    x = first.to(tl.float32)
    y = second.to(tl.float32)
    dtype = q.dtype.element_ty
    new_first = (x * c - y * s).to(dtype)
    new_second = (y * c + x * s).to(dtype)
    to_q = q + row * (H * D) + head * D + d
    tl.store(to_q, new_first, mask=head < H)
    tl.store(to_q + half, new_second, mask=head < H)
    is_k = (head >= H) & (head < 2 * H)
    to_k = keys + ((slot * H + head - H) * LINES + line) * D + d
    tl.store(to_k, new_first, mask=is_k)
    tl.store(to_k + half, new_second, mask=is_k)
    is_v = (head >= 2 * H) & inside
    to_v = values + ((slot * H + head - 2 * H) * LINES + line) * D + d
    tl.store(to_v, first, mask=is_v)
    tl.store(to_v + half, second, mask=is_v)


@triton.jit(do_not_specialize=["steps"])
def _attention_kernel(
    q,
    keys,
    values,
    starts,
    slots,
    out,
    scale,
    steps,
    H: tl.constexpr,
    D: tl.constexpr,
    LINES: tl.constexpr,
    WINDOW: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    head = tl.program_id(1)
    stream = tl.program_id(2)
    start = tl.load(starts + stream).to(tl.int32)
    slot = tl.load(slots + stream)
    step = tl.program_id(0) * M + tl.arange(0, M)
    position = start + step
    d = tl.arange(0, D)
    at = ((stream * steps + step).to(tl.int64) * H + head)[:, None] * D + d[None, :]
    real = (step < steps)[:, None]
    query = tl.load(q + at, mask=real, other=0.0)
    ring = (slot * H + head) * LINES * D
    # What any query of this program sees: positions first ... last.
    first = tl.maximum(start + tl.program_id(0) * M - WINDOW + 1, 0)
    last = start + tl.minimum(tl.program_id(0) * M + M, steps) - 1
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    for tile in range(first // N * N, last + 1, N):
        key = tile + tl.arange(0, N)
        line = tile % LINES + tl.arange(0, N)
        line = tl.where(line >= LINES, line - LINES, line)
        mine = (key >= first) & (key <= last)
        k = tl.load(keys + ring + line[None, :] * D + d[:, None], mask=mine[None, :], other=0.0)
        v = tl.load(values + ring + line[:, None] * D + d[None, :], mask=mine[:, None], other=0.0)
        scores = tl.dot(query, k, input_precision="ieee") * scale
        seen = mine[None, :] & (key[None, :] <= position[:, None]) & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(scores - base[:, None])
        keep = tl.exp2(top - base)
        acc = tl.dot(p.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
        total = total * keep + tl.sum(p, 1)
        top = new
    total = tl.where(real, total[:, None], 1.0)
    tl.store(out + at, (acc / total).to(out.dtype.element_ty), mask=real)


def rope_ring_store(
    qkv: Tensor, cos: Tensor, sin: Tensor, starts: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """See :func:`backends.kernels.ring.rope_ring_store`. One launch."""
    _, heads, lines, dim = keys.shape
    if not (qkv.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError(f"qkv {qkv.stride()}, cos {cos.stride()}, sin {sin.stride()} must be contiguous")
    q = torch.empty((len(qkv), heads * dim), dtype=qkv.dtype, device=qkv.device)
    _store_kernel[(len(qkv), triton.cdiv(3 * heads, _HEADS))](
        qkv,
        cos,
        sin,
        starts,
        slots,
        q,
        keys,
        values,
        cos.shape[1],
        H=heads,
        D=dim,
        LINES=lines,
        HEADS=_HEADS,
        num_warps=2,
    )
    return q


def ring_attention(
    q: Tensor, keys: Tensor, values: Tensor, starts: Tensor, slots: Tensor, window: int, block: int
) -> Tensor:
    """See :func:`backends.kernels.ring.ring_attention`. One launch."""
    _, heads, lines, dim = keys.shape
    if lines < _KEYS or block not in (16, 32, 64) or not q.is_contiguous():
        raise ValueError(f"{lines} lines, a block of {block} queries or q {q.stride()} are not covered")
    batch, steps = len(slots), len(q) // len(slots)
    out = torch.empty_like(q)
    _attention_kernel[(triton.cdiv(steps, block), heads, batch)](
        q,
        keys,
        values,
        starts,
        slots,
        out,
        dim**-0.5 * math.log2(math.e),
        steps,
        H=heads,
        D=dim,
        LINES=lines,
        WINDOW=window,
        M=block,
        N=_KEYS,
        num_warps=4,
    )
    return out
