"""The SEANet decoder of Mimi, as a stream: latent steps to samples.

Public architecture: a causal convolution; per ratio ELU, a transposed convolution (kernel twice the stride, half the
channels) and residual blocks ``x + conv1x1(elu(conv(elu(x))))`` whose j-th has dilation ``growth ** j``; then ELU and
a causal convolution to the audio channels. Where a shortcut is asked for, the block's ``x`` passes a 1x1 convolution.

ELU runs over whole padded rows: with a multiple of 8 rows of 4 channels or more, no element falls into the scalar tail
of the vector loop, whose last bit could differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from backends.models.causal_conv import CausalConv
from backends.models.named_tensors import NamedTensors


@dataclass(frozen=True, slots=True)
class SeanetSpec:
    """Sizes. ``ratios`` in the decoder's order: each multiplies the rate."""

    input_dim: int
    filters: int
    ratios: tuple[int, ...]
    residual_layers: int
    kernel: int
    last_kernel: int
    residual_kernel: int
    dilation_growth: int
    compress: int
    shortcut: bool
    channels: int


@dataclass(frozen=True, slots=True)
class _Residual:
    first: CausalConv
    second: CausalConv
    shortcut: CausalConv | None


@dataclass(frozen=True, slots=True)
class _Stage:
    up: CausalConv
    blocks: Sequence[_Residual]


class SeanetDecoder:
    """Weights are taken as ``prefix.layers.N``, N counting activations too, as published."""

    def __init__(self, spec: SeanetSpec, tensors: NamedTensors, prefix: str) -> None:
        self.spec = spec
        width = spec.filters * 2 ** len(spec.ratios)
        self._first = CausalConv.read(tensors, f"{prefix}.layers.0.conv", spec.input_dim, width, spec.kernel)
        self._stages: list[_Stage] = []
        layer = 2  # 1 is an activation
        for ratio in spec.ratios:
            up = CausalConv.read_transposed(tensors, f"{prefix}.layers.{layer}.conv", width, width // 2, ratio)
            width //= 2
            blocks = [
                self._residual(tensors, f"{prefix}.layers.{layer + 1 + j}", width, spec.dilation_growth**j)
                for j in range(spec.residual_layers)
            ]
            self._stages.append(_Stage(up, blocks))
            layer += spec.residual_layers + 2
        name = f"{prefix}.layers.{layer}.conv"
        self._last = CausalConv.read(tensors, name, width, spec.channels, spec.last_kernel)

    def _residual(self, tensors: NamedTensors, name: str, width: int, dilation: int) -> _Residual:
        hidden = width // self.spec.compress
        return _Residual(
            CausalConv.read(tensors, f"{name}.block.1.conv", width, hidden, self.spec.residual_kernel, dilation),
            CausalConv.read(tensors, f"{name}.block.3.conv", hidden, width, 1),
            CausalConv.read(tensors, f"{name}.shortcut.conv", width, width, 1) if self.spec.shortcut else None,
        )

    def _convolutions(self) -> Iterator[CausalConv]:
        """In the order in which :meth:`forward` runs them."""
        yield self._first
        for stage in self._stages:
            yield stage.up
            for block in stage.blocks:
                yield block.first
                yield block.second
                if block.shortcut is not None:
                    yield block.shortcut
        yield self._last

    def new_state(self, slots: int) -> list[Tensor]:
        """One context a convolution that looks back, see CausalConv.new_context."""
        return [conv.new_context(slots) for conv in self._convolutions() if conv.context_steps]

    def forward(self, rows: Tensor, steps: int, slots: Tensor, fresh: Tensor, state: Sequence[Tensor]) -> Tensor:
        """``rows`` [R, input_dim] of B streams, ``steps`` steps each -> [R * product of ratios, channels]; the
        arguments are those of CausalConv.forward."""
        contexts = iter(state)

        def run(conv: CausalConv, x: Tensor) -> Tensor:
            return conv.forward(x, steps, slots, fresh, next(contexts) if conv.context_steps else x)

        x = run(self._first, rows)
        for stage in self._stages:
            x = run(stage.up, F.elu(x, inplace=True))
            steps *= stage.up.spread
            for block in stage.blocks:
                inner = run(block.second, F.elu(run(block.first, F.elu(x)), inplace=True))
                x = inner.add_(x if block.shortcut is None else run(block.shortcut, x))
        return run(self._last, F.elu(x, inplace=True))
