"""Keys and values of every running request, in fixed slots."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.models.protocol import Attention, KVSpec


class SlotCache:
    """One slot a row of the decode bucket, and one scratch slot that idle rows write to and nobody reads.

    ``keys`` and ``values`` are [layers, slots + 1, kv heads, positions, head dim] and never move.
    """

    def __init__(self, spec: KVSpec, slots: int, positions: int, device: torch.device) -> None:
        shape = (spec.layers, slots + 1, spec.heads, positions, spec.head_dim)
        # empty, not zeros: pages of memory that no request reaches are never touched.
        self.keys = torch.empty(shape, dtype=spec.dtype, device=device)
        self.values = torch.empty(shape, dtype=spec.dtype, device=device)
        self.scratch, self.positions = slots, positions

    def prefill(self, slot: int, start: int, count: int) -> Attention:
        """Attention of ``count`` rows of one request at positions ``start``..., causal, over all that stands before."""
        keys, values = self.keys[:, slot], self.values[:, slot]
        end = start + count
        visible = torch.ones(count, end, dtype=torch.bool, device=keys.device).tril(diagonal=start)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys[layer, :, start:end] = k.transpose(0, 1)
            values[layer, :, start:end] = v.transpose(0, 1)
            out = F.scaled_dot_product_attention(
                q.transpose(0, 1).unsqueeze(0),
                keys[layer, :, :end].unsqueeze(0),
                values[layer, :, :end].unsqueeze(0),
                attn_mask=visible,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            return out.squeeze(0).transpose(0, 1)

        return attend

    def decode(
        self, slots: tuple[int, ...], lengths: tuple[int, ...], slot_ids: Tensor, positions: Tensor
    ) -> Attention:
        """Attention of one row a slot. Row b of the step belongs to ``slots[b]`` and sees ``lengths[b]`` keys, its own
        included.

        ``slot_ids`` int64 [B] is ``slots``, padded to the bucket with the scratch slot; ``positions`` int64 [B] is
        where each row writes. Every row attends by itself over its exact length, so its result cannot depend on how
        long its neighbours are.
        """
        rows = list(zip(range(len(slots)), slots, lengths, strict=True))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[slot_ids, :, positions] = k
            values[slot_ids, :, positions] = v
            out = torch.zeros_like(q)
            gqa = q.shape[1] != k.shape[1]
            for row, slot, length in rows:
                out[row] = F.scaled_dot_product_attention(
                    q[row].unsqueeze(1), keys[slot, :, :length], values[slot, :, :length], enable_gqa=gqa
                ).squeeze(1)
            return out

        return attend
