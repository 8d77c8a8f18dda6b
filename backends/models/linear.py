"""Linear layers that a step can trust: fast at few rows, and the same bits for a row whatever shares the product.

On a GPU: the weight-streaming kernel of :mod:`backends.kernels.linear` (:class:`SkinnyLinear`), whose bits do not
depend on the number of rows by construction.

On a CPU: oneDNN with weights packed once (:class:`PackedLinear`), for two reasons, both measured on a 2-core AMD EPYC
(AVX-512), torch 2.13, float32:

* speed: at 16 rows a packed oneDNN product takes a half to a third of the time of ``torch.nn.functional.linear``;
* shape discipline: the result of a row does not depend on how many rows share the product (2 to 256 rows tried, every
  matrix of the default voice, ``tests/unit/test_linear.py``), where MKL changes kernels at 1, 2, 3, 5, 6, 7, 9 rows.

The second is a property of the library, not a promise of it, so nothing that must be bit-exact relies on it alone:
the engine looks before it lets the load choose a number of rows (:mod:`backends.decoder.buckets`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from backends.kernels import bias_activation, gate_up_silu, linear_workspace, silu_mul, skinny_linear

# Any value packs for a small row count; it must be the same for every layer so that one kernel family is chosen.
_ROWS_HINT = 16


def onednn_available() -> bool:
    """True where this torch build has oneDNN and the packed float32 linear operators."""
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


class PackedLinear(nn.Module):
    """A frozen ``nn.Linear`` whose float32 weight lies in oneDNN's own layout. Inference on a CPU only."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise ValueError(f"PackedLinear takes float32 weights on a CPU, not {weight.dtype} on {weight.device}")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        self.bias = None if linear.bias is None else linear.bias.detach().contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [..., in_features] float32 -> [..., out_features] float32."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def pack_linears(module: nn.Module) -> nn.Module:
    """Replace every ``nn.Linear`` below ``module`` (itself not) by a :class:`PackedLinear`, in place.

    Returns ``module``. Does nothing where oneDNN is missing, off the CPU, or for weights that are not float32, so
    callers need no condition of their own. The packed module has no weights in its ``state_dict``: load first, pack
    last.
    """
    if not onednn_available():
        return module
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and child.weight.device.type == "cpu" and child.weight.dtype == torch.float32:
            setattr(module, name, PackedLinear(child))
        else:
            pack_linears(child)
    return module


class SkinnyLinear(nn.Module):
    """A frozen ``nn.Linear`` on a GPU: up to 64 rows stream the weights, more rows go to the library."""

    MAX_ROWS = 64

    def __init__(self, linear: nn.Linear, workspace: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.workspace = linear.weight.detach(), linear.bias, workspace

    def forward(self, x: Tensor, activation: str | None = None) -> Tensor:
        """``x`` [M, in] -> [M, out]."""
        if len(x) <= self.MAX_ROWS:
            return skinny_linear(x, self.weight, self.bias, activation, self.workspace)
        y = nn.functional.linear(x, self.weight, self.bias)
        return y if activation is None else bias_activation(y, None, activation)

    def gate_up(self, x: Tensor) -> Tensor:
        """For a weight of gate over up: ``silu(gate) * up`` [M, out / 2]."""
        if len(x) <= self.MAX_ROWS:
            return gate_up_silu(x, self.weight, self.workspace)
        return silu_mul(nn.functional.linear(x, self.weight))


def stream_linears(module: nn.Module) -> nn.Module:
    """Replace every half-precision ``nn.Linear`` on a GPU below ``module`` by a :class:`SkinnyLinear`, in place.

    All share one workspace, so the module must run on one stream at a time. Layers whose sizes the kernel does not
    cover (not multiples of 16) stay as they are. Does nothing on a CPU, or on a GPU before Hopper: the plans use its
    bulk copies.
    """
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
        and child.weight.is_cuda
        and child.weight.dtype in (torch.bfloat16, torch.float16)
        and not any(size % 16 for size in child.weight.shape)
    ]
    if found and torch.cuda.get_device_capability(found[0][2].weight.device) >= (9, 0):
        shapes = [(child.out_features, child.in_features) for _, _, child in found]
        workspace = linear_workspace(shapes, found[0][2].weight.device)
        for parent, name, child in found:
            setattr(parent, name, SkinnyLinear(child, workspace))
    return module


def linear_activation(layer: Any, x: Tensor, activation: str) -> Tensor:
    """``activation(layer(x))``, in one kernel where the layer can."""
    if isinstance(layer, SkinnyLinear):
        return layer(x, activation)
    return bias_activation(layer(x), None, activation)


def linear_silu_mul(layer: Any, x: Tensor) -> Tensor:
    """``silu(gate) * up`` of a layer that computes gate over up, in one kernel where the layer can."""
    return layer.gate_up(x) if isinstance(layer, SkinnyLinear) else silu_mul(layer(x))
