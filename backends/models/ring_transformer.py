"""The streaming transformer of :mod:`backends.models.causal_transformer` for a GPU: same weights, same formula, fewer
and larger kernels.

Keys and values lie in rings that are written in place, so a step moves nothing but its own lines; norms, RoPE and
attention are one kernel each (:mod:`backends.kernels`). By construction a row's bits depend neither on the streams
beside it nor on where its chunk began, except through the matrix products, whose kernel the library chooses by the
number of rows: see :mod:`backends.vocoder.buckets`.

Products run in ``dtype``; the residual stream stays float32, because every layer would round it twice, and so does what
is computed from it where ``exact_output`` is set: the samples themselves. Measured against float32: the 68 layers of
the public 24 kHz release, random weights, keep 44.7 dB so, and 34.3 with a rounded residual stream; the 9 of the small
voice 44 to 50 dB, of which a rounded residual stream costs 1 to 2 and rounded samples up to another.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.kernels import accumulate_layer_norm, ring_attention, rope_ring_store
from backends.models.causal_transformer import CausalTransformer, TransformerSpec, round_up
from backends.models.named_tensors import NamedTensors

_LINE_MULTIPLE = 64  # a ring is at least one tile of keys long


class RingTransformer(CausalTransformer):
    """One stage with weights of ``dtype``. ``exact_output``: its output projection computes in float32."""

    def __init__(
        self, spec: TransformerSpec, tensors: NamedTensors, prefix: str, dtype: torch.dtype, exact_output: bool
    ) -> None:
        super().__init__(spec, tensors, prefix)
        self.dtype = dtype
        # Queries of a stream that share the reading of keys: those of about eight frames. A constant of the stage, so
        # that a query's arithmetic does not depend on the chunk.
        self.block = next((size for size in (16, 32) if 8 * spec.rate <= size), 64)
        self.layers = [
            replace(
                layer,
                qkv=layer.qkv.to(dtype),
                out=layer.out.to(dtype),
                up=layer.up.to(dtype),
                down=layer.down.to(dtype),
            )
            for layer in self.layers
        ]
        if self.input is not None:
            self.input = self.input.to(dtype)
        self.output_dtype = torch.float32 if exact_output else dtype
        if self.output is not None:
            self.output = self.output.to(self.output_dtype)

    def new_history(self, slots: int, step_frames: int = 1) -> Tensor:
        """Zeros [layers, 2 (keys, values), slots, heads, lines, head_dim] in ``dtype``, for steps of up to
        ``step_frames`` frames."""
        lines = round_up(self.spec.window + step_frames * self.spec.rate - 1, _LINE_MULTIPLE)
        shape = (self.spec.layers, 2, slots, self.spec.heads, lines, self.spec.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.frequencies.device)

    def forward(self, x: Tensor, frames: Tensor, slots: Tensor, history: Tensor) -> Tensor:
        """As :meth:`CausalTransformer.forward`, for ``x`` of any float dtype; returns float32 or ``dtype``."""
        batch, steps, _ = x.shape
        spec, starts = self.spec, frames * self.spec.rate
        rows = x.reshape(batch * steps, -1)
        rows = rows if self.input is None else rows.to(self.dtype).mm(self.input)
        total = rows.to(torch.float32, copy=True)
        cos, sin = self._angles(starts, steps)
        update = None
        for layer, (keys, values) in zip(self.layers, history, strict=True):
            normed = accumulate_layer_norm(total, update, *layer.norm1, spec.norm_eps, self.dtype)
            q = rope_ring_store(normed.mm(layer.qkv), cos, sin, starts, slots, keys, values)
            mixed = ring_attention(q, keys, values, starts, slots, spec.window, self.block)
            normed = accumulate_layer_norm(total, mixed.mm(layer.out), *layer.norm2, spec.norm_eps, self.dtype)
            update = F.gelu(normed.mm(layer.up)).mm(layer.down)
        if update is not None:
            total += update
        if self.output is not None:
            total = total.to(self.output_dtype).mm(self.output)
        return total.view(batch, steps, -1)

    def _angles(self, starts: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of RoPE, float32 [B, steps, head_dim / 2], from angles in float64."""
        positions = starts[:, None] + torch.arange(steps, device=starts.device)
        angles = positions[:, :, None].to(torch.float64) * self.frequencies
        return angles.cos().float(), angles.sin().float()
