"""What the decoder engine asks of a model, and what it offers to one.

The engine knows rows, slots and steps; a model knows embeddings, layers and heads. They meet in three calls
(:meth:`DecoderModel.embed`, :meth:`~DecoderModel.backbone`, :meth:`~DecoderModel.frame`) and two call-backs
(:class:`Attention`, :class:`CodeSampler`). No method may synchronise with the host or depend on values for its shapes:
a CUDA graph wraps them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.kernels import add_layer_norm
from backends.models.sampling_defaults import SamplingDefaults
from backends.rows import RowSpec


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Shape of one position's keys (and values) over all layers."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class CrossSpec:
    """Shape of the keys (and values) that an encoder-decoder model attends to beside its own: one line a state."""

    layers: int
    heads: int
    head_dim: int
    positions: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class AudioSpec:
    """How a model reads audio: states of ``width`` numbers, made by its encoder.

    Without ``cross`` they stand in prompt rows, in place of those rows' embeddings. With it every row attends to them.
    """

    width: int
    cross: CrossSpec | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """How one layer turns its q/k/v product into heads: RMS norm of every q and k head, then rotary embedding.

    ``q_weight``, ``k_weight`` [dim]; ``cos``, ``sin`` [all positions, dim], halves equal; ``positions`` int64 [N].
    A model without either (its positions are in its embeddings) leaves norm and rotation out.
    """

    count: int
    kv_count: int
    dim: int
    positions: Tensor
    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    eps: float = 0.0
    cos: Tensor | None = None
    sin: Tensor | None = None

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``qkv`` [N, (heads + 2 kv heads) x dim] -> q [N, heads, dim], k and v [N, kv heads, dim]."""
        q, k, v = qkv.view(len(qkv), -1, self.dim).split((self.count, self.kv_count, self.kv_count), dim=1)
        if self.q_weight is None or self.k_weight is None or self.cos is None or self.sin is None:
            return q, k, v
        cos, sin = self.cos[self.positions].unsqueeze(1), self.sin[self.positions].unsqueeze(1)
        q = rotate_halves(F.rms_norm(q, (self.dim,), self.q_weight, self.eps), cos, sin)
        return q, rotate_halves(F.rms_norm(k, (self.dim,), self.k_weight, self.eps), cos, sin), v


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout (Qwen3): ``x`` [N, heads, dim], ``cos`` and ``sin`` [N, 1, dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(Protocol):
    """Stores the new keys and values of one layer and attends over what the rows may see."""

    def __call__(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        """``qkv`` [N, (heads + 2 kv heads) x dim] -> mixed values [N, heads x dim]."""
        ...


class CrossAttention(Attention, Protocol):
    """What ``backbone`` of a model with :class:`CrossSpec` is given: attention over its own rows and over states."""

    def cross(self, layer: int, q: Tensor) -> Tensor:
        """``q`` [N, heads, dim] over the states of each row's request -> mixed values [N, heads x dim]."""
        ...


class CodeSampler(ABC):
    """Turns logits into ids, row by row; a row's result depends on its own request, step and channel only.

    ``steps`` int64 [B]: frames that each row's request has made before; None: none.
    """

    steps: Tensor | None = None

    @abstractmethod
    def stop(self, logits: Tensor) -> Tensor:
        """``logits`` [B, 2] (go on, end) -> bool [B], true where the row ends."""

    @abstractmethod
    def code(self, logits: Tensor, codebook: int) -> Tensor:
        """``logits`` [B, codebook size] -> int64 [B]."""

    def code_embed(self, logits: Tensor, codebook: int, reader: CodeReader) -> tuple[Tensor, Tensor, Tensor]:
        """:meth:`code`, then what reads the code back: (ids int64 [B], embedding [B, D], its layer norm [B, D])."""
        ids = self.code(logits, codebook)
        embedded = F.embedding(ids + reader.offset, reader.table)
        normed, x = add_layer_norm(embedded, reader.position, reader.weight, reader.bias, reader.eps)
        return ids, x, normed


@dataclass(frozen=True, slots=True)
class CodeReader:
    """How a chosen code enters the next position of a frame.

    ``table`` [rows, D], read at ``offset`` + id; ``position`` [D] is added, if given; ``weight``, ``bias`` [D] and
    ``eps`` of the layer norm that reads the sum.
    """

    table: Tensor
    offset: int
    position: Tensor | None
    weight: Tensor
    bias: Tensor
    eps: float


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


class AudioModel(DecoderModel, Protocol):
    """A model that reads audio too."""

    audio: AudioSpec


class EncoderDecoderModel(AudioModel, Protocol):
    """A model that attends to the states of an encoder: its ``audio.cross`` is set."""

    def cross_kv(self, layer: int, states: Tensor) -> tuple[Tensor, Tensor]:
        """``states`` [positions, width] -> keys and values of one layer, [positions, heads, head dim] each."""
        ...


def audio_spec(model: DecoderModel) -> AudioSpec | None:
    """How ``model`` reads audio; None for a model that reads rows only."""
    return getattr(model, "audio", None)
