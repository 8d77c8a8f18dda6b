"""A matrix product whose rows do not know how many they are, as far as this machine's libraries allow it.

MKL takes other kernels, and so other orders of sums, at other numbers of rows. At multiples of 8 rows it does not, for
all matrices tried on an AMD EPYC; on an Intel Xeon (AVX-512, torch 2.13) it does where 1024, 1280 or 2048 numbers are
summed, up to 184 rows. oneDNN with packed weights did not on either. So the first product of a size is looked at: MKL's
stays where its rows agree, else oneDNN's is taken if those do. A kernel is chosen by sizes and not by values, so random
rows show it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from backends.models.linear import onednn_available

log = logging.getLogger(__name__)

#: Numbers of rows that are compared, multiples of ``ROW_MULTIPLE``; the last is that of all.
_ROWS = (8, 16, 24, 40, 56, 80, 104, 136, 184, 248, 400, 1000)
_ROWS_HINT = 16


class RowProduct:
    """``x @ matrix`` for rows [R, inputs], R a multiple of 8; ``matrix`` [inputs, outputs], contiguous."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix
        self._packed: Tensor | None = None
        if matrix.device.type == "cpu" and matrix.dtype == torch.float32 and _takes_packed(*matrix.shape):
            self._packed = _pack(matrix)

    def mm(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x @ matrix + bias``, [R, outputs]."""
        if self._packed is not None:
            return _packed_product(x, self._packed, bias)
        return x.mm(self._matrix) if bias is None else torch.addmm(bias, x, self._matrix)

    def add_to(self, total: Tensor, x: Tensor) -> Tensor:
        """``total`` [R, outputs] with ``x @ matrix`` added in place."""
        if self._packed is not None:
            return total.add_(_packed_product(x, self._packed, None))
        return total.addmm_(x, self._matrix)


@lru_cache(maxsize=256)
def _takes_packed(inputs: int, outputs: int) -> bool:
    """Whether rows of MKL's product depend on their number here, and those of oneDNN's do not."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(inputs, outputs, generator=generator)
    rows = torch.randn(_ROWS[-1], inputs, generator=generator)
    with torch.inference_mode():
        if _agrees(lambda x: x.mm(matrix), rows):
            return False
        if onednn_available():
            packed = _pack(matrix)
            if _agrees(lambda x: _packed_product(x, packed, None), rows):
                log.info("products of [%d, %d]: oneDNN's, since rows of MKL's depend on their number", inputs, outputs)
                return True
    log.warning("rows of a product of [%d, %d] depend on their number on this machine", inputs, outputs)
    return False


def _agrees(product: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    whole = product(rows)
    return all(torch.equal(product(rows[:count].contiguous()), whole[:count]) for count in _ROWS[:-1])


def _pack(matrix: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix.t().contiguous(), _ROWS_HINT)
    return packed


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return found
