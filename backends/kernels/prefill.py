"""Attention of pieces of prompts: many queries a request, keys and values in pages."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.kernels.attention import HEAD_DIMS, PAGE_SIZES


def paged_prefill_attention(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, starts: Tensor, ends: Tensor, scale: float
) -> Tensor:
    """Causal attention of P pieces of R rows each over what their requests have in pages, their own rows included.

    ``q`` [P x R, H, D], piece after piece; ``keys`` and ``values`` [pages, page size, KV, D], head h reads kv head h //
    (H / KV). Piece p has the positions from ``starts[p]`` on; of its rows, those before position ``ends[p]`` are real.
    ``tables`` int [P, max pages] maps positions to pages; ``starts`` and ``ends`` int [P], ``ends[p]`` at most max
    pages x page size; 0: nothing is real. A real row at position i sees positions 0 ... i; other rows hold finite
    numbers that mean nothing. bfloat16, float16 or float32; sums in float32. Returns [P x R, H, D]. Lines of positions
    from ``ends`` on are not read.

    The sum over keys is divided at fixed positions, so the result of a row depends on its query and on the keys and
    values that it sees alone. Raises ValueError for shapes that the kernel does not cover.
    """
    pieces, (count, heads, dim) = len(starts), q.shape
    _, page_size, kv_heads, key_dim = keys.shape
    if key_dim != dim or keys.shape != values.shape or heads % kv_heads:
        raise ValueError(f"q {tuple(q.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)} do not fit")
    if keys.dtype != q.dtype or values.dtype != q.dtype:
        raise ValueError(f"q is {q.dtype}, keys {keys.dtype}, values {values.dtype}; one dtype is needed")
    if not pieces or count % pieces or tables.shape[0] != pieces or ends.shape != (pieces,):
        raise ValueError(f"{count} rows, tables {tuple(tables.shape)}, ends {tuple(ends.shape)}: {pieces} pieces")
    if q.is_cuda:
        if dim not in HEAD_DIMS or page_size not in PAGE_SIZES:
            raise ValueError(f"head dim {dim} or page size {page_size} is not covered: {HEAD_DIMS}, {PAGE_SIZES}")
        from backends.kernels.gpu import prefill as gpu

        return gpu.paged_prefill_attention(q, keys, values, tables, starts, ends, scale)
    out = torch.zeros_like(q)
    rows = count // pieces
    for piece, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        # Row by row over the exact length, as in a decode step: what follows a row must not matter.
        pages = tables[piece, : -(-end // page_size)].long()
        k, v = (each[pages].flatten(0, 1).transpose(0, 1) for each in (keys, values))
        for row in range(min(rows, end - start)):
            seen, at = start + row + 1, piece * rows + row
            out[at] = F.scaled_dot_product_attention(
                q[at].unsqueeze(1), k[:, :seen], v[:, :seen], scale=scale, enable_gqa=kv_heads != heads
            ).squeeze(1)
    return out
