"""Weights that a checkpoint may hold folded or split by weight norm, in either of torch's spellings."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.models.named_tensors import NamedTensors

#: Names of (size, direction) after the module's name.
_SPLIT = (
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ("weight_g", "weight_v"),
)


def take_weight(tensors: NamedTensors, name: str, *shape: int) -> Tensor:
    """The weight of module ``name``, of ``shape``, folded: ``size * direction / |direction|``.

    The norm is over everything but the first dimension (Salimans & Kingma 2016, torch's ``dim=0``): the output channel
    of a convolution, the *input* channel of a transposed one. CheckpointError when neither form is complete.
    """
    for size_name, direction_name in _SPLIT:
        if f"{name}.{size_name}" in tensors or f"{name}.{direction_name}" in tensors:
            size = tensors.take(f"{name}.{size_name}", shape[0], *[1] * (len(shape) - 1))
            direction = tensors.take(f"{name}.{direction_name}", *shape)
            norm = torch.linalg.vector_norm(direction, dim=tuple(range(1, len(shape))), keepdim=True)
            return direction * (size / norm)
    return tensors.take(f"{name}.weight", *shape)
