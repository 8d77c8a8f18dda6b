"""Row keys: one thread a row, both moduli in one walk."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.gpu.early import early_launch

_BLOCK = 32


@triton.jit
def _floor_mod(value, M: tl.constexpr):
    rest = value % M  # of the sign of the value, as in C
    return tl.where(rest < 0, rest + M, rest)


@triton.jit
def _row_keys_kernel(
    rows,
    keys,
    count,
    width,
    row_stride,
    column_stride,
    M0: tl.constexpr,
    M1: tl.constexpr,
    B0: tl.constexpr,
    B1: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    first = tl.zeros((BLOCK,), tl.int64)
    second = tl.zeros((BLOCK,), tl.int64)
    for column in range(width):
        value = tl.load(rows + row * row_stride + column * column_stride, mask=inside, other=0).to(tl.int64)
        first = (first * B0 + _floor_mod(value, M0)) % M0
        second = (second * B1 + _floor_mod(value, M1)) % M1
    tl.store(keys + row * 2, first, mask=inside)
    tl.store(keys + row * 2 + 1, second, mask=inside)


def row_keys_kernel(rows: Tensor, moduli: tuple[int, int], bases: tuple[int, int]) -> Tensor:
    """See :func:`backends.kernels.row_key.row_keys_kernel`. One launch."""
    count, width = rows.shape
    keys = torch.empty((count, 2), dtype=torch.int64, device=rows.device)
    if count:
        _row_keys_kernel[(triton.cdiv(count, _BLOCK),)](
            rows,
            keys,
            count,
            width,
            rows.stride(0),
            rows.stride(1),
            M0=moduli[0],
            M1=moduli[1],
            B0=bases[0],
            B1=bases[1],
            BLOCK=_BLOCK,
            num_warps=1,
            **early_launch(rows),
        )
    return keys
