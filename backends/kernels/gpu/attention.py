"""Flash decoding over pages: every program reads one fixed span of one row's keys for one kv head."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.attention import AttentionWorkspace
from backends.kernels.gpu.early import early_launch, fetch

# Parts that one step of the combination adds; a constant, like the cut itself.
_CHUNK = 8
_PROGRAMS = 528  # four for each of the 132 multiprocessors of an H200
_FEW = 64


@triton.jit
def _combine(
    out,
    partial,
    maxima,
    sums,
    row,
    kv,
    count,
    splits,
    H: tl.constexpr,
    G: tl.constexpr,
    GC: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Add the first ``count`` parts of one row and kv head in the order of their positions."""
    g = tl.arange(0, GC)
    d = tl.arange(0, D)
    top = tl.full((GC,), float("-inf"), tl.float32)
    total = tl.zeros((GC,), tl.float32)
    acc = tl.zeros((GC, D), tl.float32)
    for first in range(0, count, CHUNK):
        part = first + tl.arange(0, CHUNK)
        ok = (part < count)[:, None] & (g < G)[None, :]
        at = (row * splits + part)[:, None] * H + (kv * G + g)[None, :]
        # .cg: other programs wrote these lines during this launch, so they must come from the L2 cache.
        m = tl.load(maxima + at, mask=ok, other=float("-inf"), cache_modifier=".cg")
        s = tl.load(sums + at, mask=ok, other=0.0, cache_modifier=".cg")
        numbers = partial + at[:, :, None] * D + d[None, None, :]
        a = tl.load(numbers, mask=ok[:, :, None], other=0.0, cache_modifier=".cg")
        new = tl.maximum(top, tl.max(m, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        weight = tl.exp2(m - base[None, :])
        keep = tl.exp2(top - base)
        acc = acc * keep[:, None] + tl.sum(weight[:, :, None] * a, 0)
        total = total * keep + tl.sum(weight * s, 0)
        top = new
    total = tl.where(g < G, total, 1.0)
    to = out + (row * H + kv * G + g)[:, None] * D + d[None, :]
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=(g < G)[:, None])


@triton.jit
def _split_kernel(
    q,
    keys,
    values,
    table,
    lengths,
    out,
    partial,
    maxima,
    sums,
    counters,
    scale,
    q_row,
    q_head,
    key_line,
    key_head,
    value_line,
    value_head,
    table_row,
    pages,
    splits,
    H: tl.constexpr,
    KV: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    GC: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    FUSED: tl.constexpr,
    AHEAD: tl.constexpr,
    CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):
    kv = tl.program_id(0)
    row = tl.program_id(1)
    if EARLY and AHEAD:
        # Keys and values of earlier positions: what the step so far has written is this position's alone.
        position = tl.program_id(2) * SPLIT + tl.arange(0, SPLIT)
        seen = (position < tl.load(lengths + row, cache_modifier=".cg")) & (position < table_row * PAGE)
        page = tl.load(table + row * table_row + position // PAGE, mask=seen, other=0, cache_modifier=".cg")
        page = tl.minimum(tl.maximum(page, 0), pages - 1).to(tl.int64)
        line = page * PAGE + position % PAGE
        part = tl.arange(0, D * keys.dtype.element_ty.primitive_bitwidth // 1024) * (
            1024 // keys.dtype.element_ty.primitive_bitwidth
        )
        wanted = seen[:, None] & (part >= 0)[None, :]
        fetch(keys + line[:, None] * key_line + kv * key_head + part[None, :], wanted)
        fetch(values + line[:, None] * value_line + kv * value_head + part[None, :], wanted)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    length = tl.load(lengths + row)
    g = tl.arange(0, GP)
    d = tl.arange(0, D)
    to = out + (row * H + kv * G + g)[:, None] * D + d[None, :]
    real = (g < G)[:, None]
    count = tl.cdiv(length, SPLIT)
    if count == 0:
        if tl.program_id(2) == 0:
            tl.store(to, tl.zeros((GP, D), out.dtype.element_ty), mask=real)
        return
    # How many programs share a row is a matter of speed: which keys form a part is not theirs to choose.
    for split in range(tl.program_id(2), count, tl.num_programs(2)):
        position = split * SPLIT + tl.arange(0, SPLIT)
        seen = position < length
        page = tl.load(table + row * table_row + position // PAGE, mask=seen, other=0).to(tl.int64)
        line = page * PAGE + position % PAGE
        # Both loads stand before the first use, so that the whole span is in flight at once. Lines that are not the
        # row's may hold anything, NaN too, so values are masked like keys.
        if GP >= 16:  # addressed as the product wants them: a transposed tile would take a detour through shared memory
            k = tl.load(keys + line[None, :] * key_line + kv * key_head + d[:, None], mask=seen[None, :], other=0.0)
        else:
            k = tl.load(keys + line[:, None] * key_line + kv * key_head + d[None, :], mask=seen[:, None], other=0.0)
        v = tl.load(values + line[:, None] * value_line + kv * value_head + d[None, :], mask=seen[:, None], other=0.0)
        query = tl.load(q + row * q_row + (kv * G + g)[:, None] * q_head + d[None, :], mask=real, other=0.0)
        if GP >= 16:  # 16 is the tensor core's smallest tile; rows past the group are zeros
            scores = tl.dot(query, k, input_precision="ieee")
        else:
            scores = tl.sum(query.to(tl.float32) * k.to(tl.float32), 1)[None, :]
        scores = tl.where(seen[None, :], scores * scale, float("-inf"))
        top = tl.max(scores, 1)
        p = tl.exp2(scores - top[:, None])
        total = tl.sum(p, 1)
        if GP >= 16:
            acc = tl.dot(p.to(v.dtype), v, input_precision="ieee")
        else:
            acc = tl.sum(tl.reshape(p, (SPLIT, 1)) * v.to(tl.float32), 0)[None, :]
        if count == 1:
            tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)
        else:
            at = (row * splits + split) * H + kv * G + g
            tl.store(maxima + at, top, mask=g < G)
            tl.store(sums + at, total, mask=g < G)
            tl.store(partial + at[:, None] * D + d[None, :], acc, mask=real)
            if FUSED:
                # All threads have stored, then one of them announces it; whoever announces last reads all the parts.
                tl.debug_barrier()
                arrived = tl.atomic_add(counters + row * KV + kv, 1, sem="acq_rel")
                if arrived == count - 1:
                    _combine(out, partial, maxima, sums, row, kv, count, splits, H, G, GC, D, CHUNK)
                    tl.store(counters + row * KV + kv, 0)


@triton.jit
def _combine_kernel(
    lengths,
    out,
    partial,
    maxima,
    sums,
    splits,
    H: tl.constexpr,
    G: tl.constexpr,
    GC: tl.constexpr,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    kv = tl.program_id(0)
    row = tl.program_id(1)
    count = tl.cdiv(tl.load(lengths + row), SPLIT)
    if count > 1:  # fewer: the one part wrote the result
        _combine(out, partial, maxima, sums, row, kv, count, splits, H, G, GC, D, CHUNK)


def paged_decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    scale: float,
    workspace: AttentionWorkspace,
) -> Tensor:
    """See :func:`backends.kernels.attention.paged_decode_attention`. One launch, or two without ``workspace.fused``."""
    batch, heads, dim = q.shape
    _, page_size, kv_heads, _ = keys.shape
    split = workspace.split_keys
    splits = -(-page_table.shape[1] * page_size // split)
    room = workspace.partial.shape
    if room[0] < batch or room[1] < splits or room[2:] != (heads, dim):
        raise ValueError(f"workspace {tuple(room)} is too small for {(batch, splits, heads, dim)}")
    for name, cache in (("keys", keys), ("values", values)):
        if cache.stride(-1) != 1 or cache.stride(0) != page_size * cache.stride(1):
            raise ValueError(f"{name} have strides {cache.stride()}: the lines of all pages must be evenly spaced")
    if q.stride(-1) != 1 or page_table.stride(-1) != 1:
        raise ValueError(f"q {q.stride()} or page table {page_table.stride()} is strided in its last dimension")
    out = torch.empty((batch, heads, dim), dtype=q.dtype, device=q.device)
    if batch == 0:
        return out
    group = heads // kv_heads
    shape = {"H": heads, "G": group, "GC": triton.next_power_of_2(group), "D": dim, "SPLIT": split, "CHUNK": _CHUNK}
    parts = (workspace.partial, workspace.maxima, workspace.sums)
    # Enough programs to fill the device, each taking every so-many-th part: a table with room for long rows does not
    # cost thousands of programs that find nothing to do.
    programs = min(splits, max(1, _PROGRAMS // (kv_heads * batch)))
    _split_kernel[(kv_heads, batch, programs)](
        q,
        keys,
        values,
        page_table,
        lengths,
        out,
        *parts,
        workspace.counters,
        scale * math.log2(math.e),
        q.stride(0),
        q.stride(1),
        keys.stride(1),
        keys.stride(2),
        values.stride(1),
        values.stride(2),
        page_table.stride(0),
        keys.shape[0],
        room[1],
        KV=kv_heads,
        GP=1 if group == 1 else max(16, triton.next_power_of_2(group)),
        PAGE=page_size,
        FUSED=workspace.fused,
        # Measured on an H200: fetching ahead gains where a few programs wait for memory, and costs where many share it.
        AHEAD=kv_heads * batch <= _FEW,
        # A thread holds its share of keys and values as loaded, and as float32 too where no tensor core reads them.
        num_warps=4 if split * dim * (4 if group == 1 else q.element_size()) <= 1 << 15 else 8,
        **shape,
        **early_launch(q),
    )
    if not workspace.fused and splits > 1:
        _combine_kernel[(kv_heads, batch)](lengths, out, *parts, room[1], num_warps=4, **shape, **early_launch(q))
    return out
