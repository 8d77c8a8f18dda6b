"""From the fused q/k/v product to a rotated query and a stored key and value."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """Norm of every q and k head (Qwen3), rotary embedding (Su et al. 2021, half-split), store of k and v.

    ``qkv`` [N, (H + 2 KV) D]: the heads of q, then of k, then of v; ``q_weight``, ``k_weight`` [D]; ``cos``, ``sin``
    [positions, D], both halves of a line equal, of any float dtype; ``positions`` int64 [N], the line of ``cos``;
    ``keys``, ``values`` [pages, page size, KV, D], contiguous, written at flat line ``lines`` int64 [N] = page x page
    size + offset. Returns q [N, H, D] in the dtype of ``qkv``. Everything is float32 inside and rounded once. Rows that
    share a line (idle rows of a step on the scratch page) leave any one of their values there.
    """
    _, _, kv_heads, dim = keys.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    if qkv.shape[1] != (heads + 2 * kv_heads) * dim or heads < 1:
        raise ValueError(f"qkv {tuple(qkv.shape)} does not hold heads of {dim} and 2 x {kv_heads} kv heads")
    if not (keys.is_contiguous() and values.is_contiguous()) or keys.shape != values.shape:
        raise ValueError(f"keys {tuple(keys.shape)} and values {tuple(values.shape)} must be contiguous and alike")
    if qkv.is_cuda:
        from backends.kernels.gpu import rope as gpu

        return gpu.qk_norm_rope_store(qkv, q_weight, k_weight, eps, cos, sin, positions, keys, values, lines)
    q, k, v = qkv.view(len(qkv), -1, dim).split((heads, kv_heads, kv_heads), dim=1)
    cos, sin = cos[positions].float().unsqueeze(1), sin[positions].float().unsqueeze(1)
    q = _rotate(F.rms_norm(q.float(), (dim,), q_weight.float(), eps), cos, sin)
    k = _rotate(F.rms_norm(k.float(), (dim,), k_weight.float(), eps), cos, sin)
    keys.view(-1, kv_heads, dim)[lines] = k.to(keys.dtype)
    values.view(-1, kv_heads, dim)[lines] = v.to(values.dtype)
    return q.to(qkv.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
