"""Random pieces of prompts for paged prefill attention, against plain float64 attention."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from tests.kernel_cases import close, poisoned_empty

Piece = tuple[int, int]  # first position, end: as in the contract


class PrefillCase:
    """Pieces of ``rows`` rows over a pool of pages in random order, everything that no piece owns full of NaN."""

    def __init__(
        self,
        device: str,
        dtype: torch.dtype,
        heads: tuple[int, int],
        dim: int,
        page: int,
        rows: int,
        pieces: list[Piece],
        seed: int = 0,
    ) -> None:
        random = torch.Generator().manual_seed(seed)
        self.device, self.page, self.rows, self.pieces = device, page, rows, pieces
        longest = max(start + rows for start, _ in pieces)
        self.max_pages, self.scale = -(-longest // page) + 1, dim**-0.5
        self.q = torch.randn(len(pieces), rows, heads[0], dim, generator=random).to(device, dtype)
        self.kv = torch.randn(len(pieces), 2, longest, heads[1], dim, generator=random).to(device, dtype)

    def run(self, module: ModuleType, order: list[int], seed: int = 0, ends: dict[int, int] | None = None) -> Tensor:
        """Results [len(order), rows, heads, dim] of the pieces in ``order``; ``ends`` replaces some of their ends."""
        _, _, _, kv_heads, dim = self.kv.shape
        pool = len(order) * self.max_pages + 1
        deal = torch.randperm(pool, generator=torch.Generator().manual_seed(seed)).tolist()
        shape = (pool, self.page, kv_heads, dim)
        keys, values = (torch.full(shape, float("nan"), dtype=self.q.dtype, device=self.device) for _ in range(2))
        # Entries past a piece's pages point far outside: they must not be followed.
        tables = torch.full((len(order), self.max_pages), 2**30, dtype=torch.int64)
        starts = torch.tensor([self.pieces[piece][0] for piece in order])
        stops = torch.tensor([(ends or {}).get(piece, self.pieces[piece][1]) for piece in order])
        for place, piece in enumerate(order):
            end = int(stops[place])
            pages = [deal.pop() for _ in range(-(-end // self.page))]
            tables[place, : len(pages)] = torch.tensor(pages, dtype=torch.int64)
            for cache, own in zip((keys, values), self.kv[piece], strict=True):
                for index, number in enumerate(pages):
                    part = own[index * self.page : min(end, (index + 1) * self.page)]
                    cache[number, : len(part)] = part
        tables, starts, stops = (each.to(self.device) for each in (tables, starts, stops))
        with poisoned_empty():
            out: Tensor = module.paged_prefill_attention(
                self.q[order].flatten(0, 1), keys, values, tables, starts, stops, self.scale
            )
        return out.view(len(order), *self.q.shape[1:])

    def real(self, piece: int) -> int:
        """How many rows of a piece are real."""
        start, end = self.pieces[piece]
        return max(0, min(end - start, self.rows))

    def reference(self, piece: int) -> Tensor:
        """Plain float64 attention of the real rows [real, heads, dim]."""
        start, _ = self.pieces[piece]
        q = self.q[piece, : self.real(piece)].double().cpu()
        k, v = self.kv[piece].double().cpu().repeat_interleave(q.shape[1] // self.kv.shape[3], dim=2)
        scores = torch.einsum("rhd,nhd->hrn", q, k) * self.scale
        hidden = torch.arange(k.shape[0])[None] > start + torch.arange(len(q))[:, None]
        return torch.einsum("hrn,nhd->rhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def check_prefill(module: ModuleType, case: PrefillCase) -> None:
    out = case.run(module, list(range(len(case.pieces))))
    assert bool(out.isfinite().all()), "rows that are not real must be finite too"
    for piece in range(len(case.pieces)):
        if case.real(piece):
            close(out[piece, : case.real(piece)], case.reference(piece), case.q.dtype)


def check_prefill_invariance(module: ModuleType, case: PrefillCase) -> None:
    """The same bits for a real row alone, elsewhere, on other pages, and in a piece that ends sooner."""
    everyone = list(range(len(case.pieces)))
    out = case.run(module, everyone)
    assert torch.equal(case.run(module, everyone[::-1], seed=6), out.flip(0))
    for piece in everyone:
        assert torch.equal(case.run(module, [piece], seed=7)[0], out[piece])
        if (real := case.real(piece)) > 1:
            start, keep = case.pieces[piece][0], real // 2
            shorter = case.run(module, everyone, seed=8, ends={piece: start + keep})
            assert torch.equal(shorter[piece, :keep], out[piece, :keep])
