"""Residual LFQ of MOSS-Audio-Tokenizer: codes to vectors by table, vectors to codes by nearest entry.

Public formula: ``decode(codes) = output_proj(sum_i out_proj_i(codebook_i[code_i]))``, all 1x1 convolutions with
weight norm (``weight = g * v / |v|``, the norm over everything but the output channel). All of it is linear in the
entry, so each codebook becomes one table of final vectors and decoding is look-ups and adds in codebook order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.models.codebook_table import CodebookTable
from backends.models.named_tensors import NamedTensors


@dataclass(frozen=True, slots=True)
class QuantizerSpec:
    """Sizes. ``used`` of the ``codebooks`` stored ones take part (a TTS model may speak fewer than the codec has)."""

    input_dim: int
    inner_dim: int
    output_dim: int
    codebooks: int
    used: int
    entries: int
    entry_dim: int


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A 1x1 convolution with its weight norm folded: ``x @ weight.T + bias``; identity where widths are equal."""

    weight: Tensor | None
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return x if self.weight is None else F.linear(x, self.weight, self.bias)


def take_pointwise(tensors: NamedTensors, name: str, inputs: int, outputs: int) -> Pointwise:
    """Read one weight-normed convolution. The public code has no layer where input and output widths are equal."""
    if inputs == outputs:
        return Pointwise(None, None)
    size = tensors.take(f"{name}.parametrizations.weight.original0", outputs, 1, 1)
    direction = tensors.take(f"{name}.parametrizations.weight.original1", outputs, inputs, 1)
    weight = size * direction / torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
    return Pointwise(weight[:, :, 0].contiguous(), tensors.take(f"{name}.bias", outputs))


class ResidualQuantizer:
    """Float32 throughout."""

    def __init__(self, spec: QuantizerSpec, tensors: NamedTensors, prefix: str) -> None:
        self.spec = spec
        self.input = take_pointwise(tensors, f"{prefix}.input_proj", spec.input_dim, spec.inner_dim)
        self.output = take_pointwise(tensors, f"{prefix}.output_proj", spec.inner_dim, spec.output_dim)
        self.codebooks: list[Tensor] = []
        self.ins: list[Pointwise] = []
        self.outs: list[Pointwise] = []
        for i in range(spec.codebooks):
            name = f"{prefix}.quantizers.{i}"
            self.codebooks.append(tensors.take(f"{name}.codebook.weight", spec.entries, spec.entry_dim))
            self.ins.append(take_pointwise(tensors, f"{name}.in_proj", spec.inner_dim, spec.entry_dim))
            self.outs.append(take_pointwise(tensors, f"{name}.out_proj", spec.entry_dim, spec.inner_dim))
        del self.codebooks[spec.used :], self.ins[spec.used :], self.outs[spec.used :]
        inner = [out(book) for out, book in zip(self.outs, self.codebooks, strict=True)]
        linear = Pointwise(self.output.weight, None)
        self._table = CodebookTable([linear(entries) for entries in inner], self.output.bias)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [..., used], each in [0, entries) -> float32 [..., output_dim]."""
        return self._table.decode(codes)

    def encode(self, vectors: Tensor) -> Tensor:
        """Float32 [T, input_dim] -> codes int64 [T, used]: the nearest entry by direction, its residual to the next."""
        residual = self.input(vectors)
        codes = []
        for inward, outward, book in zip(self.ins, self.outs, self.codebooks, strict=True):
            wanted, entries = F.normalize(inward(residual)), F.normalize(book)
            near = wanted.pow(2).sum(1, keepdim=True) - 2 * wanted @ entries.t() + entries.pow(2).sum(1)
            code = (-near).max(1)[1]
            residual = residual - outward(book[code])
            codes.append(code)
        return torch.stack(codes, dim=1)
