"""Attention inside one frame: a handful of positions, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_POSITIONS = 64


def frame_attention(
    qkv: Tensor,
    cache: Tensor,
    position: int,
    scale: float,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> Tensor:
    """One position of the frame-local transformer: store its key and value, attend over positions 0 ... ``position``.

    ``qkv`` [B, 3 heads dim]: q, k, v; ``cache`` [2, B, heads, positions, dim], contiguous, keys and values, written at
    ``position`` in place; later positions are not read. ``cos``, ``sin`` [positions, dim / 2]: rotary embedding of
    neighbouring pairs (2i, 2i + 1), rounded to the dtype of ``qkv``; None for models with absolute positions. Returns
    the mixed values [B, heads dim]; sums in float32.
    """
    _, batch, heads, positions, dim = cache.shape
    if qkv.shape != (batch, 3 * heads * dim) or not cache.is_contiguous():
        raise ValueError(f"qkv {tuple(qkv.shape)} does not fit a contiguous cache {tuple(cache.shape)}")
    if not 0 <= position < positions <= MAX_POSITIONS:
        raise ValueError(f"position {position} of {positions}; at most {MAX_POSITIONS} positions are covered")
    if qkv.is_cuda:
        from backends.kernels.gpu import frame as gpu

        return gpu.frame_attention(qkv, cache, position, scale, cos, sin)
    q, k, v = qkv.view(batch, 3, heads, dim).unbind(1)
    if cos is not None and sin is not None:
        q, k = _rotate(q, cos[position], sin[position]), _rotate(k, cos[position], sin[position])
    cache[0, :, :, position], cache[1, :, :, position] = k, v
    keys, values = cache[0, :, :, : position + 1].float(), cache[1, :, :, : position + 1].float()
    # Sums of products, one row and head at a time: a library's batched product may change its bits with the batch.
    scores = (keys * q.float().unsqueeze(2)).sum(dim=-1) * scale
    mixed = (scores.softmax(dim=-1).unsqueeze(-1) * values).sum(dim=2)
    return mixed.reshape(batch, heads * dim).to(qkv.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` [B, heads, dim] with ``cos`` and ``sin`` [dim / 2]."""
    even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
    cos, sin = cos.float(), sin.float()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)
