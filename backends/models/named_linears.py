"""Products and norms of published layers, taken by name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backends.models.named_tensors import NamedTensors


class NamedLinears:
    """Takes the products of one layer by their published names."""

    def __init__(self, tensors: NamedTensors, prefix: str, width: int) -> None:
        self._tensors, self._prefix, self._width = tensors, prefix, width

    def one(self, name: str, out: int = 0, into: int = 0, bias: bool = True) -> nn.Linear:
        """The product ``name``, [``out``, ``into``], each the model's width where not given."""
        out, into = out or self._width, into or self._width
        weight = self._tensors.take(f"{self._prefix}.{name}.weight", out, into)
        return frozen_linear(weight, self._tensors.take(f"{self._prefix}.{name}.bias", out) if bias else None)

    def fused(self, attention: str, key_bias: bool = False) -> nn.Linear:
        """q, k and v of ``attention`` in one. Without ``key_bias`` k has none of its own, and gets zeros."""
        parts = [self.one(f"{attention}.{name}_proj", bias=key_bias or name != "k") for name in "qkv"]
        biases = [torch.zeros_like(parts[0].bias) if part.bias is None else part.bias.detach() for part in parts]
        return frozen_linear(torch.cat([part.weight.detach() for part in parts]), torch.cat(biases))

    def norm(self, name: str) -> tuple[Tensor, Tensor]:
        """Weight and bias of the layer norm ``name``."""
        weight = self._tensors.take(f"{self._prefix}.{name}.weight", self._width)
        return weight, self._tensors.take(f"{self._prefix}.{name}.bias", self._width)


def frozen_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A product with ``weight`` [out, in], which is not copied, and ``bias`` [out]."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
