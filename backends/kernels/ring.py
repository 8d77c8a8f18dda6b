"""Windowed attention of streams whose keys and values lie in rings: position p of a stream lies in line p mod lines.

A ring of window + L - 1 lines holds all that L new steps need, their own keys among it, so new keys are stored first
and nothing is ever moved. What a query gets depends on its stream's position, its window and the numbers in it: never
on how many steps or streams share the call, nor on where a chunk began.
"""

from __future__ import annotations

import torch
from torch import Tensor

HEAD_DIMS = (32, 64, 128)


def rope_ring_store(
    qkv: Tensor, cos: Tensor, sin: Tensor, starts: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Rotary embedding (Su et al. 2021, half-split) of q and k; k and v go to their lines.

    ``qkv`` [B L, 3 H D]: the heads of q, then of k, then of v, the rows of a stream one after another; ``cos``, ``sin``
    float32 [B, L, D / 2]; ``starts`` int64 [B], the position of a stream's first row; ``slots`` int64 [B], all
    different, its place in ``keys`` and ``values`` [slots, H, lines, D], contiguous. Returns q [B L, H D]. Float32
    inside, rounded once.
    """
    _check_rings(keys, values, slots, starts)
    heads, dim = keys.shape[1], keys.shape[3]
    if qkv.shape[1] != 3 * heads * dim or qkv.shape[0] != cos.shape[0] * cos.shape[1] or cos.shape[2] * 2 != dim:
        raise ValueError(f"qkv {tuple(qkv.shape)} and cos {tuple(cos.shape)} do not fit {heads} heads of {dim}")
    if qkv.is_cuda:
        from backends.kernels.gpu import ring as gpu

        return gpu.rope_ring_store(qkv, cos, sin, starts, slots, keys, values)
    batch, steps, half = cos.shape
    first, second = qkv.view(batch, steps, 3, heads, 2, half).float().unbind(4)
    c, s = cos[:, :, None, None], sin[:, :, None, None]
    turned = torch.cat((first * c - second * s, second * c + first * s), -1).to(qkv.dtype)
    lines = (starts[:, None] + torch.arange(steps)) % keys.shape[2]
    where = (slots[:, None], slice(None), lines)
    keys[where], values[where] = turned[:, :, 1], qkv.view(batch, steps, 3, heads, dim)[:, :, 2]
    return turned[:, :, 0].reshape(batch * steps, heads * dim)


def ring_attention(
    q: Tensor, keys: Tensor, values: Tensor, starts: Tensor, slots: Tensor, window: int, block: int
) -> Tensor:
    """Softmax attention, scaled by 1 / sqrt(D), over the last ``window`` positions of a query's stream, its own
    included.

    ``q`` [B L, H D] as :func:`rope_ring_store` returns it, after it has stored the same rows; ``block`` 16, 32 or 64:
    how many queries of a stream share the reading of keys on a GPU, a matter of speed (but part of what defines the
    bits, so keep it constant). Lines of positions outside a query's window, and before position 0, may hold anything.
    Returns [B L, H D] in the dtype of ``q``.
    """
    _check_rings(keys, values, slots, starts)
    heads, lines, dim = keys.shape[1:]
    batch, steps = len(slots), len(q) // len(slots)
    if q.shape != (batch * steps, heads * dim) or q.dtype != keys.dtype:
        raise ValueError(f"q {q.dtype} {tuple(q.shape)} does not fit {batch} streams, {keys.dtype} {tuple(keys.shape)}")
    if not 1 <= window <= lines - steps + 1:
        raise ValueError(f"a window of {window} and {steps} steps need {window + steps - 1} lines, there are {lines}")
    if q.is_cuda:
        from backends.kernels.gpu import ring as gpu

        return gpu.ring_attention(q, keys, values, starts, slots, window, block)
    offsets = torch.arange(1 - window, steps)
    at = starts[:, None] + offsets
    where = (slots[:, None], slice(None), at % lines)
    seen = torch.arange(steps)[:, None] - offsets
    seen = (seen >= 0) & (seen < window) & (at >= 0)[:, None]
    k, v = (torch.where((at >= 0)[:, :, None, None], ring[where].float(), 0.0) for ring in (keys, values))
    scores = torch.einsum("blhd,bkhd->bhlk", q.view(batch, steps, heads, dim).float(), k) * dim**-0.5
    share = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    return torch.einsum("bhlk,bkhd->blhd", share, v).reshape(q.shape).to(q.dtype)


def _check_rings(keys: Tensor, values: Tensor, slots: Tensor, starts: Tensor) -> None:
    if keys.shape != values.shape or not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError(f"keys {tuple(keys.shape)} and values {tuple(values.shape)} must be contiguous and alike")
    if keys.shape[3] not in HEAD_DIMS or slots.shape != starts.shape:
        raise ValueError(f"head dim {keys.shape[3]} is not one of {HEAD_DIMS}, or slots and starts do not fit")
