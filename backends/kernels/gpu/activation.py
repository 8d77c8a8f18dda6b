"""Activations: elementwise, a program for 1,024 columns of a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.gpu.early import early_launch

_BLOCK = 1024


@triton.jit
def _silu_mul_kernel(gate_up, out, row_stride, INNER: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < INNER
    gate = tl.load(gate_up + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + INNER + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * INNER + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _bias_activation_kernel(
    x,
    bias,
    out,
    row_stride,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < INNER
    dtype = out.dtype.element_ty
    v = tl.load(x + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        v += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        v = v.to(dtype).to(tl.float32)
    if KIND == "silu":
        v = v * tl.sigmoid(v)
    elif KIND == "gelu_new":
        # 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (v + 0.044715 v^3) (Hendrycks, Gimpel 2016)
        v = v * tl.sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v))
    else:
        v = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    tl.store(out + row * INNER + column, v.to(dtype), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See :func:`backends.kernels.activation.silu_mul`. One launch."""
    count, inner = gate_up.shape[0], gate_up.shape[1] // 2
    _check(gate_up)
    out = torch.empty((count, inner), dtype=gate_up.dtype, device=gate_up.device)
    if count:
        grid = (count, triton.cdiv(inner, _BLOCK))
        _silu_mul_kernel[grid](
            gate_up, out, gate_up.stride(0), INNER=inner, BLOCK=_BLOCK, num_warps=4, **early_launch(gate_up)
        )
    return out


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """See :func:`backends.kernels.activation.bias_activation`. One launch."""
    count, inner = x.shape
    _check(x)
    out = torch.empty((count, inner), dtype=x.dtype, device=x.device)
    if count:
        _bias_activation_kernel[(count, triton.cdiv(inner, _BLOCK))](
            x,
            x if bias is None else bias,
            out,
            x.stride(0),
            INNER=inner,
            BLOCK=_BLOCK,
            HAS_BIAS=bias is not None,
            KIND=activation,
            num_warps=4,
            **early_launch(x),
        )
    return out


def _check(x: Tensor) -> None:
    if x.stride(1) != 1:
        raise ValueError(f"rows of {tuple(x.shape)} have stride {x.stride(1)}, 1 is needed")
