"""Keys and values in pages, and the attention that reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.device import upload
from backends.kernels import (
    AttentionWorkspace,
    attention_workspace,
    paged_decode_attention,
    paged_prefill_attention,
    qk_norm_rope_store,
    split_keys_for,
)
from backends.models.protocol import Attention, Heads, KVSpec


class PagedCache:
    """Keys and values [layers, pages + 1, page_rows, kv heads, head dim] and a page table a slot; nothing ever moves.

    The last page is scratch: rows that belong to nobody (padding) write there, and nobody reads it. ``tables`` int32
    [slots + 1, table_pages] maps a slot's positions to pages; the last line, the scratch slot's, stays on the scratch
    page.
    """

    def __init__(
        self, spec: KVSpec, pages: int, page_rows: int, slots: int, positions: int, device: torch.device
    ) -> None:
        shape = (spec.layers, pages + 1, page_rows, spec.heads, spec.head_dim)
        # Zeros: what a kernel loads and then masks must at least be finite.
        self.keys = torch.zeros(shape, dtype=spec.dtype, device=device)
        self.values = torch.zeros(shape, dtype=spec.dtype, device=device)
        self.pages, self.page_rows, self.scratch_page, self.scratch_slot = pages, page_rows, pages, slots
        self._shared: AttentionWorkspace | None = None
        self.table_pages = -(-positions // page_rows)
        self.tables = torch.full((slots + 1, self.table_pages), pages, dtype=torch.int32, device=device)

    def set_table(self, slot: int, pages: Sequence[int], start: int = 0) -> None:
        """Write ``pages`` into the slot's table from entry ``start`` on."""
        if pages:
            entries = torch.tensor(pages, dtype=torch.int32)
            if self.tables.is_cuda:
                entries = entries.pin_memory()  # from pageable memory the copy would wait for the device
            self.tables[slot, start : start + len(pages)].copy_(entries, non_blocking=True)

    def prefill(self, pages: Sequence[int], start: int, lines: Tensor) -> Attention:
        """Attention of one piece of one prompt: causal, over the ``start`` rows in ``pages`` and over the piece itself.

        ``start`` is a multiple of ``page_rows``; ``lines`` int64 [count]: where the piece's rows are stored (the
        scratch page's for rows that are stored already, and for padding). The piece attends over its own keys as they
        were just computed, not as stored, so padding can never bring a stale value into a sum.
        """
        count = len(lines)
        device = self.keys.device
        before = upload(torch.tensor(list(pages[: start // self.page_rows]), dtype=torch.int64), device)
        visible = torch.ones(count, start + count, dtype=torch.bool, device=device).tril(diagonal=start)

        def attend(layer: int, qkv: Tensor, heads: Heads) -> Tensor:
            q, k, v = heads.split(qkv)
            self._store(layer, lines, k, v)
            keys = torch.cat([self.keys[layer][before].flatten(0, 1), k])
            values = torch.cat([self.values[layer][before].flatten(0, 1), v])
            out = F.scaled_dot_product_attention(
                q.transpose(0, 1).unsqueeze(0),
                keys.transpose(0, 1).unsqueeze(0),
                values.transpose(0, 1).unsqueeze(0),
                attn_mask=visible,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            return out.squeeze(0).transpose(0, 1).reshape(count, -1)

        return attend

    def prefill_pieces(self, tables: Tensor, starts: Tensor, ends: Tensor, lines: Tensor) -> Attention:
        """Attention of pieces of several prompts, for :func:`backends.kernels.paged_prefill_attention`.

        ``lines`` int64, one a row: where it is stored (the scratch page's for rows that are stored already, and for
        padding). Everything is read from the pages, this pass's rows too.
        """

        def attend(layer: int, qkv: Tensor, heads: Heads) -> Tensor:
            q, keys, values = self._take(layer, qkv, heads, lines), self.keys[layer], self.values[layer]
            return paged_prefill_attention(q, keys, values, tables, starts, ends, heads.dim**-0.5).flatten(1)

        return attend

    def decode(self, tables: Tensor, lengths: Tensor, lines: Tensor) -> Attention:
        """Attention of one row a slot, on a GPU, for a :class:`backends.kernels.StepInput`; nothing from the host.

        Each row's sum is divided at fixed positions, so it does not depend on the batch
        (:mod:`backends.kernels.attention`).
        """

        def attend(layer: int, qkv: Tensor, heads: Heads) -> Tensor:
            q, keys, values = self._take(layer, qkv, heads, lines), self.keys[layer], self.values[layer]
            workspace = self._workspace(heads)
            return paged_decode_attention(q, keys, values, tables, lengths, heads.dim**-0.5, workspace).flatten(1)

        return attend

    def decode_rows(self, pages: Sequence[Sequence[int]], lengths: Sequence[int], lines: Tensor) -> Attention:
        """Attention of one row a slot, for the CPU. Row b sees the first ``lengths[b]`` positions of ``pages[b]``.

        ``lines`` int64 [B]: where the rows are stored; it may be longer than ``lengths``: the rest is padding and gets
        zeros. Every row attends by itself over its exact length: its result cannot depend on its neighbours.
        """
        tables = [
            torch.tensor(row[: -(-length // self.page_rows)], dtype=torch.int64)
            for row, length in zip(pages, lengths, strict=True)
        ]
        rows = list(zip(range(len(lengths)), tables, lengths, strict=True))

        def attend(layer: int, qkv: Tensor, heads: Heads) -> Tensor:
            q, k, v = heads.split(qkv)
            self._store(layer, lines, k, v)
            keys, values = self.keys[layer], self.values[layer]
            out = torch.zeros_like(q)
            gqa = q.shape[1] != k.shape[1]
            for row, table, length in rows:
                own_keys = keys.index_select(0, table).flatten(0, 1)[:length]
                own_values = values.index_select(0, table).flatten(0, 1)[:length]
                out[row] = F.scaled_dot_product_attention(
                    q[row].unsqueeze(1), own_keys.transpose(0, 1), own_values.transpose(0, 1), enable_gqa=gqa
                ).squeeze(1)
            return out.flatten(1)

        return attend

    def _take(self, layer: int, qkv: Tensor, heads: Heads, lines: Tensor) -> Tensor:
        """Store keys and values of the rows at ``lines``; the queries [N, heads, dim]."""
        if heads.q_weight is None or heads.k_weight is None or heads.cos is None or heads.sin is None:
            q, k, v = heads.split(qkv)
            self._store(layer, lines, k, v)
            return q.contiguous()
        return qk_norm_rope_store(
            qkv, heads.q_weight, heads.k_weight, heads.eps, heads.cos, heads.sin, heads.positions,
            self.keys[layer], self.values[layer], lines,
        )  # fmt: skip

    def _workspace(self, heads: Heads) -> AttentionWorkspace:
        """One for all layers and steps, made at the first call and never moved."""
        if self._shared is None:
            self._shared = attention_workspace(
                self.scratch_slot + 1,
                heads.count,
                heads.dim,
                self.table_pages,
                self.page_rows,
                self.keys.device,
                split_keys_for(self.keys.dtype),
            )
        return self._shared

    def _store(self, layer: int, lines: Tensor, k: Tensor, v: Tensor) -> None:
        self.keys[layer].flatten(0, 1).index_copy_(0, lines, k)
        self.values[layer].flatten(0, 1).index_copy_(0, lines, v)
