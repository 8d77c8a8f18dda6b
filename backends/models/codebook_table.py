"""Codes to vectors where everything behind a codebook is linear: one table a codebook, look-ups and adds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class CodebookTable:
    """``books``: one [entries, D] table a codebook, of equal shapes; ``bias`` [D] is added once."""

    def __init__(self, books: Sequence[Tensor], bias: Tensor | None = None) -> None:
        self._table, self._bias = torch.cat(list(books)), bias
        self._books = len(books)
        self._offsets = torch.arange(len(books), device=self._table.device) * books[0].shape[0]

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [..., books], each in [0, entries) -> the sum of their vectors [..., D]."""
        vectors = F.embedding(codes + self._offsets, self._table)
        total = vectors[..., 0, :].clone() if self._bias is None else vectors[..., 0, :] + self._bias
        for i in range(1, self._books):  # in codebook order: a sum kernel could choose its order by shape
            total += vectors[..., i, :]
        return total
