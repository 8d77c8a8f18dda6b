"""Flash attention of pieces of prompts over pages: every program has a block of one piece's rows and one head."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.gpu.early import early_launch

_ROWS = 64  # at most, of one program


@triton.jit
def _prefill_kernel(
    q,
    keys,
    values,
    tables,
    starts,
    ends,
    out,
    scale,
    key_line,
    key_head,
    value_line,
    value_head,
    table_row,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    block = tl.program_id(0)
    head = tl.program_id(1)
    piece = block // (R // ROWS)
    within = (block % (R // ROWS)) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    start = tl.load(starts + piece)
    end = tl.load(ends + piece)
    position = start + within
    # A row sees itself and what stands before it, and nobody sees past the end: those lines are not the piece's.
    last = tl.minimum(position, end - 1)
    limit = tl.minimum(start + (block % (R // ROWS)) * ROWS + ROWS, end)
    at = ((piece * R + within)[:, None] * H + head) * D + d[None, :]
    query = tl.load(q + at)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, D), tl.float32)
    # The blocks of keys begin at 0 for every row of every request: which keys are added together depends on positions
    # alone, and a block of which a row sees nothing changes nothing in it.
    for first in range(0, limit, KEYS):
        key = first + tl.arange(0, KEYS)
        inside = key < limit
        page = tl.load(tables + piece * table_row + key // PAGE, mask=inside, other=0).to(tl.int64)
        line = page * PAGE + key % PAGE
        k = tl.load(
            keys + line[None, :] * key_line + (head // G) * key_head + d[:, None], mask=inside[None, :], other=0.0
        )
        v = tl.load(
            values + line[:, None] * value_line + (head // G) * value_head + d[None, :], mask=inside[:, None], other=0.0
        )
        scores = tl.dot(query, k, input_precision="ieee") * scale
        scores = tl.where(key[None, :] <= last[:, None], scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(scores - base[:, None])
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(p, 1)
        acc = acc * keep[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty))


def paged_prefill_attention(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, starts: Tensor, ends: Tensor, scale: float
) -> Tensor:
    """See :func:`backends.kernels.prefill.paged_prefill_attention`. One launch."""
    pieces, (count, heads, dim) = len(starts), q.shape
    _, page_size, kv_heads, _ = keys.shape
    rows = count // pieces
    block = min(_ROWS, rows & -rows)
    for name, cache in (("keys", keys), ("values", values)):
        if cache.stride(-1) != 1 or cache.stride(0) != page_size * cache.stride(1):
            raise ValueError(f"{name} have strides {cache.stride()}: the lines of all pages must be evenly spaced")
    if not q.is_contiguous() or tables.stride(-1) != 1 or block < 16:
        raise ValueError(f"q {q.stride()}, tables {tables.stride()} or pieces of {rows} rows are not covered")
    out = torch.empty_like(q)
    _prefill_kernel[(count // block, heads)](
        q,
        keys,
        values,
        tables,
        starts,
        ends,
        out,
        scale * math.log2(math.e),
        keys.stride(1),
        keys.stride(2),
        values.stride(1),
        values.stride(2),
        tables.stride(0),
        H=heads,
        G=heads // kv_heads,
        D=dim,
        R=rows,
        ROWS=block,
        KEYS=64 if q.element_size() <= 2 else 32,
        PAGE=page_size,
        num_warps=4,
        **early_launch(q),
    )
    return out
