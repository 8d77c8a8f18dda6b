"""Linear layers for the CPU: oneDNN with weights packed once.

Two reasons, both measured on a 2-core AMD EPYC (AVX-512), torch 2.13, float32:

* speed: at 16 rows a packed oneDNN product takes a half to a third of the time of ``torch.nn.functional.linear`` (MKL);
* shape discipline: the result of a row does not depend on how many rows share the product (2 to 256 rows tried, every
  matrix of the default voice, ``tests/unit/test_linear.py``), where MKL changes kernels at 1, 2, 3, 5, 6, 7, 9 ...
  rows.

The second is a property of the library, not a promise of it, so nothing that must be bit-exact relies on it alone:
the engines keep their row counts fixed as well.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
