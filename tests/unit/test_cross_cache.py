"""Cross-attention by slot: what a GPU does (pages and tables) beside what a CPU does (row by row)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.decoder.cross_cache import CrossCache
from backends.decoder.kv_cache import PagedCache
from backends.kernels import SlotState, begin_step
from backends.models.protocol import CrossSpec, Heads, KVSpec

SLOTS, LAYERS, POSITIONS, HEADS, DIM = 3, 2, 100, 2, 64
CPU = torch.device("cpu")


def unused(layer: int, qkv: Tensor, heads: Heads) -> Tensor:
    raise AssertionError("own rows are not attended to here")


def test_pages_and_rows_give_the_same_and_padding_reads_nothing() -> None:
    random = torch.Generator().manual_seed(0)
    spec = CrossSpec(LAYERS, HEADS, DIM, POSITIONS, torch.float32)
    caches = [CrossCache(spec, SLOTS, CPU, paged) for paged in (False, True)]
    before = [cache.keys.data_ptr() for cache in caches]
    stored = torch.randn(2, LAYERS, SLOTS, POSITIONS, HEADS, DIM, generator=random)
    for layer in range(LAYERS):
        for slot in range(SLOTS):
            for cache in caches:
                cache.store(layer, slot, stored[0, layer, slot], stored[1, layer, slot])
    assert [cache.keys.data_ptr() for cache in caches] == before
    slots = [2, 0, 1]
    q = torch.randn(4, HEADS, DIM, generator=random)
    rows, pages = caches[0].decode_rows(unused, slots), caches[1].decode(unused, torch.tensor([*slots, SLOTS]))
    for layer in range(LAYERS):
        wanted = [
            F.scaled_dot_product_attention(q[row, :, None], *stored[:, layer, slot].transpose(1, 2)).flatten()
            for row, slot in enumerate(slots)
        ]
        for found in (rows.cross(layer, q), pages.cross(layer, q)):
            assert (found[:3] - torch.stack(wanted)).abs().max() < 1e-6
            assert not found[3].any(), "the scratch slot"
        for cache in caches:
            piece = cache.prefill(unused, 2).cross(layer, q)
            assert (piece[0] - wanted[0]).abs().max() < 1e-6


def test_heads_without_norm_and_rotation_are_stored_as_they_are() -> None:
    random = torch.Generator().manual_seed(1)
    spec, rows, length = KVSpec(1, HEADS, DIM, torch.float32), 16, 5
    cache = PagedCache(spec, pages=2, page_rows=rows, slots=2, positions=rows, device=CPU)
    pages = [[1], [0]]
    for slot, own in enumerate(pages):
        cache.set_table(slot, own)
    past = torch.randn(2, 2, length - 1, HEADS, DIM, generator=random)
    cache.keys[0, [1, 0], : length - 1], cache.values[0, [1, 0], : length - 1] = past[0], past[1]
    slot_ids, positions = torch.tensor([0, 1]), torch.tensor([length - 1] * 2)
    qkv, heads = torch.randn(2, 3 * HEADS * DIM, generator=random), Heads(HEADS, HEADS, DIM, positions)
    state = SlotState(
        torch.zeros(3, 2, dtype=torch.int64), torch.tensor([length - 1] * 3), torch.zeros(3, dtype=torch.int64)
    )
    step = begin_step(slot_ids, state, cache.tables, rows)
    on_gpu = cache.decode(step.tables, step.lengths, step.lines)(0, qkv, heads)
    on_cpu = cache.decode_rows(pages, [length] * 2, step.lines)(0, qkv, heads)
    assert (on_gpu - on_cpu).abs().max() < 1e-6
    q, k, v = qkv.view(2, 3, HEADS, DIM).unbind(1)
    assert torch.equal(cache.keys[0, [1, 0], length - 1], k) and torch.equal(cache.values[0, [1, 0], length - 1], v)
    keys, values = torch.cat([past[0], k[:, None]], dim=1), torch.cat([past[1], v[:, None]], dim=1)
    wanted = F.scaled_dot_product_attention(q[:, :, None], keys.transpose(1, 2), values.transpose(1, 2))
    assert (on_cpu - wanted.flatten(1)).abs().max() < 1e-6
