"""The decoder of the DAC family: convolutions that look both ways, from vectors at the frame rate to samples.

Structure (public, Kumar et al. 2023): a convolution of 7 taps; per stride a snake, a transposed convolution of
``2 * stride`` taps and three residual units of dilation 1, 3, 9; a snake and a last convolution of 7 taps. Every
stage halves the channels.

Float32 only. The transposed convolutions overlap-add many terms of both signs, and in bfloat16 that is heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.models.named_tensors import NamedTensors
from backends.models.snake import Snake
from backends.models.weight_norm import take_weight

TAPS = 7
DILATIONS = (1, 3, 9)


class Reach(NamedTuple):
    """How far one frame is heard: ``before`` samples before its own first, ``after`` samples from that on."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class DacDecoderSpec:
    """Sizes. ``pad_output``: odd strides get back the sample that they lose; ``tanh``: the last step."""

    input_dim: int
    width: int
    strides: tuple[int, ...]
    pad_output: bool
    tanh: bool

    @property
    def hop(self) -> int:
        """Samples a frame."""
        return prod(self.strides)

    def samples(self, frames: int) -> int:
        """Samples that ``frames`` frames decode to.

        A transposed convolution of stride s with ceil(s / 2) cut at both ends makes s * L of L values, and one less
        when s is odd and nothing is padded. So strides 8, 5, 4, 2 make 12792 of 40 frames, not 12800.
        """
        length = frames
        for stride in self.strides:
            length = length * stride - (0 if self.pad_output else stride % 2)
        return max(length, 0)

    @property
    def reach(self) -> Reach:
        """The samples that depend on frame 0, counted from its first; from kernels, dilations and strides alone."""
        low = high = 0
        low, high = low - TAPS // 2, high + TAPS // 2
        for stride in self.strides:
            cut = _cut(stride)
            low, high = low * stride - cut, high * stride - cut + 2 * stride - 1
            side = TAPS // 2 * sum(DILATIONS)
            low, high = low - side, high + side
        return Reach(TAPS // 2 - low, high + TAPS // 2)


class _Convolution:
    """Stride 1, as many values out as in."""

    def __init__(
        self, tensors: NamedTensors, name: str, inputs: int, outputs: int, taps: int = TAPS, dilation: int = 1
    ) -> None:
        self._weight = take_weight(tensors, name, outputs, inputs, taps)
        self._bias = tensors.take(f"{name}.bias", outputs)
        self._dilation, self._padding = dilation, taps // 2 * dilation

    def __call__(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self._weight, self._bias, padding=self._padding, dilation=self._dilation)


class _Upsampling:
    """Snake and transposed convolution: [B, inputs, L] -> [B, outputs, about L * stride]."""

    def __init__(
        self, tensors: NamedTensors, name: str, inputs: int, outputs: int, stride: int, pad_output: bool
    ) -> None:
        self._snake = Snake(tensors, f"{name}.snake1", inputs)
        self._weight = take_weight(tensors, f"{name}.conv_t1", inputs, outputs, 2 * stride)
        self._bias = tensors.take(f"{name}.conv_t1.bias", outputs)
        self._stride, self._padding = stride, stride % 2 if pad_output else 0

    def __call__(self, x: Tensor) -> Tensor:
        return F.conv_transpose1d(
            self._snake(x), self._weight, self._bias, self._stride, _cut(self._stride), self._padding
        )


class _ResidualUnit:
    """``x`` plus two convolutions of it, a snake before each."""

    def __init__(self, tensors: NamedTensors, name: str, width: int, dilation: int) -> None:
        self._snake1 = Snake(tensors, f"{name}.snake1", width)
        self._conv1 = _Convolution(tensors, f"{name}.conv1", width, width, dilation=dilation)
        self._snake2 = Snake(tensors, f"{name}.snake2", width)
        self._conv2 = _Convolution(tensors, f"{name}.conv2", width, width, taps=1)

    def __call__(self, x: Tensor) -> Tensor:
        return self._conv2(self._snake2(self._conv1(self._snake1(x)))).add_(x)


class DacDecoder:
    """Vectors float32 [B, input_dim, T] -> samples float32 [B, spec.samples(T)], full scale 1.0."""

    def __init__(self, spec: DacDecoderSpec, tensors: NamedTensors, prefix: str) -> None:
        self.spec = spec
        width = spec.width
        self._layers: list[_Convolution | _Upsampling | _ResidualUnit | Snake] = [
            _Convolution(tensors, f"{prefix}.conv1", spec.input_dim, width)
        ]
        for i, stride in enumerate(spec.strides):
            name = f"{prefix}.block.{i}"
            self._layers.append(_Upsampling(tensors, name, width, width // 2, stride, spec.pad_output))
            width //= 2
            for unit, dilation in enumerate(DILATIONS, 1):
                self._layers.append(_ResidualUnit(tensors, f"{name}.res_unit{unit}", width, dilation))
        self._layers.append(Snake(tensors, f"{prefix}.snake1", width))
        self._layers.append(_Convolution(tensors, f"{prefix}.conv2", width, 1))

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self._layers:
            x = layer(x)
        x = x.squeeze(1)
        return torch.tanh(x) if self.spec.tanh else x


def _cut(stride: int) -> int:
    """Values that a transposed convolution leaves out at either end: ceil(stride / 2)."""
    return -(-stride // 2)
