"""What stands between the two products of a feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
}


def silu_mul(gate_up: Tensor) -> Tensor:
    """``gate_up`` [N, 2 I] -> silu(gate) x up [N, I] (SwiGLU, Shazeer 2020); float32 inside, rounded once."""
    if gate_up.is_cuda:
        from backends.kernels.gpu import activation as gpu

        return gpu.silu_mul(gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """``x`` [N, I] + ``bias`` [I], rounded to the dtype of ``x``, then ``silu``, ``gelu_new`` or ``gelu`` -> [N, I]."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {sorted(ACTIVATIONS)}")
    if x.is_cuda:
        from backends.kernels.gpu import activation as gpu

        return gpu.bias_activation(x, bias, activation)
    biased = x if bias is None else x + bias
    return ACTIVATIONS[activation](biased.float()).to(x.dtype)
