"""Attention of a decode step: one query a row, keys and values in pages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

HEAD_DIMS = (64, 128)
PAGE_SIZES = (16, 32, 64)
# Keys that one program reads, in 16 bits. Constant, so that where a row is cut depends on positions alone.
SPLIT_KEYS = 256


def split_keys_for(dtype: torch.dtype) -> int:
    """The cut for keys of ``dtype``: what a program reads at once must fit the shared memory of a multiprocessor."""
    return SPLIT_KEYS if dtype.itemsize <= 2 else SPLIT_KEYS // 2


@dataclass(frozen=True, slots=True)
class AttentionWorkspace:
    """What the parts of a row leave for the combination, and the rules of the cut. Calls on one stream may share it.

    ``partial`` float32 [B, splits, H, D], ``maxima`` and ``sums`` float32 [B, splits, H]; ``counters`` int32 [B, H] are
    zero between calls. ``fused``: the last part of a row to arrive combines them all; otherwise a second kernel does.
    Both add in the same order and give the same bits.
    """

    partial: Tensor
    maxima: Tensor
    sums: Tensor
    counters: Tensor
    split_keys: int
    fused: bool


def attention_workspace(
    batch: int,
    heads: int,
    head_dim: int,
    max_pages: int,
    page_size: int,
    device: torch.device,
    split_keys: int = SPLIT_KEYS,
    fused: bool = True,
) -> AttentionWorkspace:
    """Workspace for up to ``batch`` rows of up to ``max_pages`` pages. ``split_keys`` a power of two from 16."""
    if split_keys < 16 or split_keys & (split_keys - 1):
        raise ValueError(f"split_keys {split_keys} is not a power of two from 16")
    splits = -(-max_pages * page_size // split_keys)
    shape = (batch, splits, heads)
    return AttentionWorkspace(
        partial=torch.empty((*shape, head_dim), dtype=torch.float32, device=device),
        maxima=torch.empty(shape, dtype=torch.float32, device=device),
        sums=torch.empty(shape, dtype=torch.float32, device=device),
        counters=torch.zeros((batch, heads), dtype=torch.int32, device=device),
        split_keys=split_keys,
        fused=fused,
    )


def paged_decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    scale: float,
    workspace: AttentionWorkspace,
) -> Tensor:
    """Attention of each row's query over the row's own keys, grouped-query (Ainslie et al. 2023).

    ``q`` [B, H, D]; ``keys`` and ``values`` [pages, page size, KV, D], head h reads kv head h // (H / KV);
    ``page_table`` int32 [B, max pages]; ``lengths`` int32 [B], keys of each row, at most max pages x page size.
    bfloat16, float16 or float32; sums in float32. Returns [B, H, D], zeros where the length is 0. Lines past a length
    and table entries past the last page of a row are not read.

    On CUDA this is flash decoding: a row is cut every ``workspace.split_keys`` positions, the parts are added in the
    order of their positions. The result of a row depends on its query, keys and length alone. Raises ValueError for
    shapes that the kernel does not cover.
    """
    batch, heads, dim = q.shape
    _, page_size, kv_heads, key_dim = keys.shape
    if dim not in HEAD_DIMS or page_size not in PAGE_SIZES:
        raise ValueError(f"head dim {dim} or page size {page_size} is not covered: {HEAD_DIMS}, {PAGE_SIZES}")
    if key_dim != dim or keys.shape != values.shape or heads % kv_heads:
        raise ValueError(f"q {tuple(q.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)} do not fit")
    if keys.dtype != q.dtype or values.dtype != q.dtype:
        raise ValueError(f"q is {q.dtype}, keys {keys.dtype}, values {values.dtype}; one dtype is needed")
    if page_table.shape[0] != batch or lengths.shape != (batch,):
        raise ValueError(f"{batch} rows, page table {tuple(page_table.shape)}, lengths {tuple(lengths.shape)}")
    if q.is_cuda:
        from backends.kernels.gpu import attention as gpu

        return gpu.paged_decode_attention(q, keys, values, page_table, lengths, scale, workspace)
    return _paged_decode_attention(q, keys, values, page_table, lengths, scale)


def _paged_decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """Row by row over the exact length, so that no neighbour can matter."""
    page_size, gqa = keys.shape[1], keys.shape[2] != q.shape[1]
    out = torch.zeros_like(q)
    for row, length in enumerate(lengths.tolist()):
        if length == 0:
            continue
        pages = page_table[row, : -(-length // page_size)].long()
        k = keys[pages].flatten(0, 1)[:length].transpose(0, 1)
        v = values[pages].flatten(0, 1)[:length].transpose(0, 1)
        out[row] = F.scaled_dot_product_attention(q[row].unsqueeze(1), k, v, scale=scale, enable_gqa=gqa).squeeze(1)
    return out
