"""Snake, the periodic activation of the DAC family: ``x + sin(alpha * x)^2 / alpha``, one alpha a channel.

Formula: Ziyin et al. 2020, with 1e-9 added to the divisor as in the public code.
"""

from __future__ import annotations

from torch import Tensor

from backends.models.named_tensors import NamedTensors


class Snake:
    """Float32 [B, channels, L] -> the same shape. Element by element: no row, no length reaches another."""

    def __init__(self, tensors: NamedTensors, name: str, channels: int) -> None:
        self._alpha = tensors.take(f"{name}.alpha", 1, channels, 1)
        self._scale = (self._alpha + 1e-9).reciprocal()

    def __call__(self, x: Tensor) -> Tensor:
        wave = (self._alpha * x).sin_()
        return wave.mul_(wave).mul_(self._scale).add_(x)
