"""Keys and values of an encoder's states, by slot, and the attention of decoder rows over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.kernels import AttentionWorkspace, attention_workspace, paged_decode_attention
from backends.models.protocol import Attention, CrossSpec, Heads

_PAGE_ROWS = 64  # the largest page that the decode kernel reads


@dataclass(frozen=True, slots=True)
class DecoderAttention:
    """Attention of a decoder layer of an encoder-decoder model: over its own rows, and over the encoder's states."""

    own: Attention
    over_states: Callable[[int, Tensor], Tensor]

    def __call__(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        """See :class:`backends.models.protocol.Attention`."""
        return self.own(layer, qkv, heads)

    def cross(self, layer: int, q: Tensor) -> Tensor:
        """See :class:`backends.models.protocol.CrossAttention`."""
        return self.over_states(layer, q)


class CrossCache:
    """Keys and values of every layer and slot, and of a scratch slot, the last one.

    A slot's part is written when its request is read in, and only read from then on; nothing ever moves. The layout
    follows who reads. ``paged`` (a GPU): [layers, slots + 1, lines, heads, head dim], ``lines`` the encoder's positions
    in whole pages, which the decode kernel finds through a table that never changes. Otherwise (a CPU) [layers, slots +
    1, heads, lines, head dim]: a head's lines lie together, and reading them takes half the time (0.34 ms a row and
    layer of Whisper tiny instead of 0.72, one core of an AMD EPYC).
    """

    def __init__(self, spec: CrossSpec, slots: int, device: torch.device, paged: bool) -> None:
        self.spec, self.paged = spec, paged
        pages = -(-spec.positions // _PAGE_ROWS)
        lines = (pages * _PAGE_ROWS, spec.heads) if paged else (spec.heads, spec.positions)
        shape = (spec.layers, slots + 1, *lines, spec.head_dim)
        self.keys = torch.zeros(shape, dtype=spec.dtype, device=device)
        self.values = torch.zeros(shape, dtype=spec.dtype, device=device)
        self._tables = torch.arange((slots + 1) * pages, dtype=torch.int32, device=device).view(slots + 1, pages)
        self._lengths = torch.full((slots + 1,), spec.positions, dtype=torch.int32, device=device)
        self._lengths[slots].zero_()  # padding rows read nothing
        self._shared: AttentionWorkspace | None = None

    def store(self, layer: int, slot: int, keys: Tensor, values: Tensor) -> None:
        """``keys`` and ``values`` [positions, heads, head dim] of one layer for ``slot``."""
        own_keys, own_values = self._part(layer, slot)
        own_keys.copy_(keys.transpose(0, 1))
        own_values.copy_(values.transpose(0, 1))

    def prefill(self, own: Attention, slot: int) -> DecoderAttention:
        """Attention of a piece of one prompt: every row of it over the states of ``slot``."""

        def attend(layer: int, q: Tensor) -> Tensor:
            return self._over(layer, slot, q)

        return DecoderAttention(own, attend)

    def decode(self, own: Attention, slot_ids: Tensor) -> DecoderAttention:
        """Attention of one row a slot, of a paged cache: slots int64 [B] on the device, nothing from the host."""
        tables, lengths = self._tables[slot_ids], self._lengths[slot_ids]

        def attend(layer: int, q: Tensor) -> Tensor:
            keys = self.keys[layer].view(-1, _PAGE_ROWS, self.spec.heads, self.spec.head_dim)
            values = self.values[layer].view_as(keys)
            return paged_decode_attention(
                q, keys, values, tables, lengths, self.spec.head_dim**-0.5, self._workspace(q)
            ).flatten(1)

        return DecoderAttention(own, attend)

    def decode_rows(self, own: Attention, slots: Sequence[int]) -> DecoderAttention:
        """Attention of one row a slot, for the CPU: each by itself, so that no neighbour can matter.

        ``slots`` may be shorter than the batch: the rest is padding and gets zeros.
        """

        def attend(layer: int, q: Tensor) -> Tensor:
            out = q.new_zeros(len(q), q.shape[1] * q.shape[2])
            for row, slot in enumerate(slots):
                out[row] = self._over(layer, slot, q[row : row + 1])[0]
            return out

        return DecoderAttention(own, attend)

    def _over(self, layer: int, slot: int, q: Tensor) -> Tensor:
        """``q`` [N, heads, dim] over the states of one slot -> [N, heads x dim]."""
        keys, values = self._part(layer, slot)
        out = F.scaled_dot_product_attention(q.transpose(0, 1).unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0))
        return out.squeeze(0).transpose(0, 1).reshape(len(q), -1)

    def _part(self, layer: int, slot: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer and slot, [heads, positions, head dim]: views."""
        keys, values = self.keys[layer, slot], self.values[layer, slot]
        if self.paged:
            keys, values = keys.transpose(0, 1), values.transpose(0, 1)
        return keys[:, : self.spec.positions], values[:, : self.spec.positions]

    def _workspace(self, q: Tensor) -> AttentionWorkspace:
        """One for all layers and steps, made at the first call and never moved."""
        if self._shared is None:
            slots, pages = self._tables.shape
            self._shared = attention_workspace(slots, q.shape[1], q.shape[2], pages, _PAGE_ROWS, q.device)
        return self._shared
