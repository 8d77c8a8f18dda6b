"""Norms: one program a row, the row in registers from the first read to the last write."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.gpu.early import early_launch


@triton.jit
def layer_norm_row(x, w, b, eps, D: tl.constexpr, columns):
    """Layer norm of one row ``x`` float32 [BLOCK], zero past ``D``, with weight ``w`` and bias ``b`` [BLOCK]."""
    inside = columns < D
    mean = tl.sum(x, 0) / D
    centred = tl.where(inside, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / D + eps)
    return centred * scale * w.to(tl.float32) + b.to(tl.float32)


@triton.jit
def _norm_kernel(
    x,
    x_bias,
    residual,
    weight,
    bias,
    normed,
    total,
    x_row,
    residual_row,
    eps,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    RMS: tl.constexpr,
    HAS_X_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    dtype = normed.dtype.element_ty
    w = tl.load(weight + columns, mask=inside, other=0.0)
    b = w if RMS else tl.load(bias + columns, mask=inside, other=0.0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(x + row * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    # Each sum is rounded as a separate addition would round it, and the norm reads what the next layer will read.
    if HAS_X_BIAS:
        value += tl.load(x_bias + columns, mask=inside, other=0.0).to(tl.float32)
        value = value.to(dtype).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + row * residual_row + columns, mask=inside, other=0.0).to(tl.float32)
        value = value.to(dtype).to(tl.float32)
    if HAS_X_BIAS or HAS_RESIDUAL:
        tl.store(total + row * D + columns, value.to(dtype), mask=inside)
    if RMS:
        result = value * tl.rsqrt(tl.sum(value * value, 0) / D + eps) * w.to(tl.float32)
    else:
        result = layer_norm_row(value, w, b, eps, D, columns)
    tl.store(normed + row * D + columns, result.to(dtype), mask=inside)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See :func:`backends.kernels.norm.add_rms_norm`. One launch."""
    return _norm(x, residual, weight, None, eps, None)


def add_layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float, x_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See :func:`backends.kernels.norm.add_layer_norm`. One launch."""
    return _norm(x, residual, weight, bias, eps, x_bias)


@triton.jit
def _accumulate_kernel(total, x, weight, bias, normed, eps, D: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * D
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    value = tl.load(total + row + columns, mask=inside, other=0.0)
    if ADD:
        value += tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row + columns, value, mask=inside)
    w = tl.load(weight + columns, mask=inside, other=0.0)
    b = tl.load(bias + columns, mask=inside, other=0.0)
    result = layer_norm_row(value, w, b, eps, D, columns)
    tl.store(normed + row + columns, result.to(normed.dtype.element_ty), mask=inside)


def accumulate_layer_norm(
    total: Tensor, x: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """See :func:`backends.kernels.norm.accumulate_layer_norm`. One launch."""
    count, dim = total.shape
    if not total.is_contiguous() or total.dtype != torch.float32:
        raise ValueError(f"total {total.dtype} {total.stride()} must be contiguous float32")
    if x is not None and (x.shape != total.shape or not x.is_contiguous()):
        raise ValueError(f"x {tuple(x.shape)} {x.stride()} does not fit total {tuple(total.shape)}")
    normed = torch.empty((count, dim), dtype=dtype, device=total.device)
    block = triton.next_power_of_2(dim)
    _accumulate_kernel[(count,)](
        total,
        total if x is None else x,
        weight,
        bias,
        normed,
        eps,
        D=dim,
        BLOCK=block,
        ADD=x is not None,
        num_warps=warps_for(block),
    )
    return normed


def warps_for(block: int) -> int:
    """Warps for a row of ``block`` elements: 16 elements a thread, two 16-byte accesses in 16 bits."""
    return min(8, max(1, block // 512))


def _norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, x_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    count, dim = x.shape
    if x.stride(1) != 1 or (residual is not None and (residual.stride(-1) != 1 or residual.shape[-1] != dim)):
        raise ValueError(f"rows of x {tuple(x.shape)} or its residual are strided or do not fit")
    normed = torch.empty((count, dim), dtype=x.dtype, device=x.device)
    adds = residual is not None or x_bias is not None
    total = torch.empty_like(normed) if adds else x
    if count == 0:
        return normed, total
    block = triton.next_power_of_2(dim)
    _norm_kernel[(count,)](
        x,
        x if x_bias is None else x_bias,
        x if residual is None else residual,
        weight,
        weight if bias is None else bias,
        normed,
        total,
        x.stride(0),
        residual.stride(0) if residual is not None and residual.dim() == 2 else 0,
        eps,
        D=dim,
        BLOCK=block,
        RMS=bias is None,
        HAS_X_BIAS=x_bias is not None,
        HAS_RESIDUAL=residual is not None,
        num_warps=warps_for(block),
        **early_launch(x),
    )
    return normed, total
