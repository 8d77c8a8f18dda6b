"""Row keys on the device: a Horner polynomial of a row under two moduli at once."""

from __future__ import annotations

import torch
from torch import Tensor


def row_keys_kernel(rows: Tensor, moduli: tuple[int, int], bases: tuple[int, int]) -> Tensor:
    """``rows`` int64 or int32 [N, W], any strides -> int64 [N, 2], one column a (modulus, base).

    Per column: ``key = 0; key = (key * base + id mod modulus) mod modulus`` over the ids of a row from left to right,
    with the floor-mod, so that negative ids count too. Exact: moduli and bases are below 2^31, so no intermediate
    reaches 2^62. Raises ValueError for moduli or bases out of that range.
    """
    for modulus, base in zip(moduli, bases, strict=True):
        if not (1 < modulus < 1 << 31 and 0 <= base < modulus):
            raise ValueError(f"modulus {modulus} and base {base}: 1 < modulus < 2^31 and 0 <= base < modulus")
    if rows.is_cuda:
        from backends.kernels.gpu import row_key as gpu

        return gpu.row_keys_kernel(rows, moduli, bases)
    modulo, times = torch.tensor(moduli), torch.tensor(bases)
    keys = torch.zeros(len(rows), 2, dtype=torch.int64)
    for column in rows.long().unbind(1):
        keys = (keys * times + column[:, None] % modulo) % modulo
    return keys
