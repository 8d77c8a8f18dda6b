"""Norms, with the residual sum that stands before each of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMS norm (Zhang, Sennrich 2019) of ``x`` + ``residual``: ``total / sqrt(mean(total^2) + eps) * weight``.

    ``x`` and ``residual`` [N, D], ``weight`` [D], one dtype. Returns (normed, total), both [N, D]. The total is rounded
    to the dtype of ``x`` and the norm reads the rounded total, in float32, rounding once at the end. Without a residual
    the total is ``x`` itself.
    """
    if x.is_cuda:
        from backends.kernels.gpu import norm as gpu

        return gpu.add_rms_norm(x, residual, weight, eps)
    total = x if residual is None else x + residual
    normed = F.rms_norm(total.float(), (total.shape[-1],), weight.float(), eps)
    return normed.to(x.dtype), total


def add_layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float, x_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Layer norm (Ba et al. 2016) of ``residual`` + (``x`` + ``x_bias``).

    ``x`` [N, D]; ``residual`` [N, D] or one row [D] for all; ``weight``, ``bias``, ``x_bias`` [D], one dtype. Returns
    (normed, total), both [N, D]. Each sum is rounded to the dtype of ``x`` and the norm reads the rounded total, in
    float32. ``x_bias`` is the bias of the product that made ``x``. Without residual and bias the total is ``x`` itself.
    """
    if x.is_cuda:
        from backends.kernels.gpu import norm as gpu

        return gpu.add_layer_norm(x, residual, weight, bias, eps, x_bias)
    total = x if x_bias is None else x + x_bias
    total = total if residual is None else total + residual
    normed = F.layer_norm(total.float(), (total.shape[-1],), weight.float(), bias.float(), eps)
    return normed.to(x.dtype), total


def accumulate_layer_norm(
    total: Tensor, x: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """Add ``x`` [N, D] of any float dtype to ``total`` float32 [N, D] in place; the layer norm of that, in ``dtype``.

    ``weight``, ``bias`` float32 [D]. A residual stream kept in float32 collects many small terms without rounding each
    to the dtype of the products. Float32 inside, rounded once at the end; without ``x`` nothing is added.
    """
    if total.is_cuda:
        from backends.kernels.gpu import norm as gpu

        return gpu.accumulate_layer_norm(total, x, weight, bias, eps, dtype)
    if x is not None:
        total += x
    return F.layer_norm(total, (total.shape[1],), weight, bias, eps).to(dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm of ``x`` [N, D] with ``weight`` and ``bias`` [D] -> [N, D]; float32 inside."""
    return add_layer_norm(x, None, weight, bias, eps)[0]
