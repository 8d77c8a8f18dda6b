"""What the decoder engine asks of a model, and what it offers to one.

The engine knows rows, slots and steps; a model knows embeddings, layers and heads. They meet in three calls
(:meth:`DecoderModel.embed`, :meth:`~DecoderModel.backbone`, :meth:`~DecoderModel.frame`) and two call-backs
(:class:`Attention`, :class:`CodeSampler`). No method may synchronise with the host or depend on values for its shapes:
a CUDA graph wraps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backends.models.sampling_defaults import SamplingDefaults
from backends.rows import RowSpec


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Shape of one position's keys (and values) over all layers."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype


class Attention(Protocol):
    """Stores the new keys and values of one layer and attends over what the rows may see."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``q`` [N, heads, dim], ``k`` and ``v`` [N, kv heads, dim] -> [N, heads, dim]."""
        ...


class CodeSampler(Protocol):
    """Turns logits into ids, row by row; a row's result depends on its own request, step and channel only."""

    def stop(self, logits: Tensor) -> Tensor:
        """``logits`` [B, 2] (go on, end) -> bool [B], true where the row ends."""
        ...

    def code(self, logits: Tensor, codebook: int) -> Tensor:
        """``logits`` [B, codebook size] -> int64 [B]."""
        ...


class DecoderModel(Protocol):
    """A model that makes one row a step."""

    rows: RowSpec
    kv: KVSpec
    defaults: SamplingDefaults
    sampling_rate: int
    max_positions: int
    device: torch.device

    def embed(self, rows: Tensor) -> Tensor:
        """Rows int64 [N, width] -> [N, hidden]."""
        ...

    def backbone(self, x: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """``x`` [N, hidden], ``positions`` int64 [N] -> last hidden states [N, hidden]."""
        ...

    def frame(self, hidden: Tensor, sampler: CodeSampler) -> tuple[Tensor, Tensor]:
        """``hidden`` [B, hidden] -> (codes int64 [B, codebooks], stop bool [B])."""
        ...
