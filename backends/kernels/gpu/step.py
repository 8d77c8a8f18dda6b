"""Around the model: one program a row gathers before it, one embeds, one hands the new row on."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.gpu.early import early_launch
from backends.kernels.step import SlotState, StepInput

_BLOCK = 512


@triton.jit
def _begin_kernel(
    slot_ids,
    all_rows,
    all_positions,
    all_steps,
    all_tables,
    rows,
    positions,
    steps,
    tables,
    lengths,
    lines,
    pages,
    W: tl.constexpr,
    WP: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + row)
    position = tl.load(all_positions + slot)
    step = tl.load(all_steps + slot)
    page = tl.load(all_tables + slot * pages + position // PAGE).to(tl.int64)
    tl.store(positions + row, position)
    tl.store(steps + row, step)
    tl.store(lengths + row, (position + 1).to(tl.int32))
    tl.store(lines + row, page * PAGE + position % PAGE)
    w = tl.arange(0, WP)
    tl.store(rows + row * W + w, tl.load(all_rows + slot * W + w, mask=w < W), mask=w < W)
    for first in range(0, pages, BLOCK):
        p = first + tl.arange(0, BLOCK)
        tl.store(tables + row * pages + p, tl.load(all_tables + slot * pages + p, mask=p < pages), mask=p < pages)


@triton.jit
def _finish_kernel(
    slot_ids,
    positions,
    steps,
    codes,
    rows,
    all_rows,
    all_positions,
    all_steps,
    text_id,
    scratch,
    W: tl.constexpr,
    WP: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + row)
    w = tl.arange(0, WP)
    code = tl.load(codes + row * (W - 1) + w - 1, mask=(w > 0) & (w < W), other=0)
    ids = tl.where(w == 0, text_id, code)
    tl.store(rows + row * W + w, ids, mask=w < W)
    real = slot < scratch
    tl.store(all_rows + slot * W + w, ids, mask=real & (w < W))
    tl.store(all_positions + slot, tl.load(positions + row) + 1, mask=real)
    tl.store(all_steps + slot, tl.load(steps + row) + 1, mask=real)


@triton.jit
def _embed_kernel(
    rows,
    text_table,
    code_table,
    out,
    W: tl.constexpr,
    D: tl.constexpr,
    CODEBOOK: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    total = tl.zeros((BLOCK,), tl.float32)
    for codebook in tl.static_range(W - 1):
        code = tl.minimum(tl.load(rows + row * W + 1 + codebook), CODEBOOK - 1) + codebook * CODEBOOK
        total += tl.load(code_table + code * D + column, mask=inside, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    text = tl.load(text_table + tl.load(rows + row * W) * D + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D + column, (total.to(dtype).to(tl.float32) + text).to(dtype), mask=inside)


def begin_step(slot_ids: Tensor, state: SlotState, tables: Tensor, page_rows: int) -> StepInput:
    """See :func:`backends.kernels.step.begin_step`. One launch."""
    count, width, pages = len(slot_ids), state.rows.shape[1], tables.shape[1]
    _check(slot_ids, state.rows, state.positions, state.steps, tables)
    device = slot_ids.device
    step = StepInput(
        rows=torch.empty((count, width), dtype=torch.int64, device=device),
        positions=torch.empty(count, dtype=torch.int64, device=device),
        steps=torch.empty(count, dtype=torch.int64, device=device),
        tables=torch.empty((count, pages), dtype=torch.int32, device=device),
        lengths=torch.empty(count, dtype=torch.int32, device=device),
        lines=torch.empty(count, dtype=torch.int64, device=device),
    )
    _begin_kernel[(count,)](
        slot_ids,
        state.rows,
        state.positions,
        state.steps,
        tables,
        step.rows,
        step.positions,
        step.steps,
        step.tables,
        step.lengths,
        step.lines,
        pages,
        W=width,
        WP=triton.next_power_of_2(width),
        PAGE=page_rows,
        BLOCK=min(_BLOCK, triton.next_power_of_2(pages)),
        num_warps=1,
        **early_launch(slot_ids),
    )
    return step


def finish_step(slot_ids: Tensor, step: StepInput, codes: Tensor, text_id: int, state: SlotState) -> Tensor:
    """See :func:`backends.kernels.step.finish_step`. One launch."""
    count, width = len(slot_ids), state.rows.shape[1]
    _check(slot_ids, step.positions, step.steps, codes, state.rows, state.positions, state.steps)
    rows = torch.empty((count, width), dtype=torch.int64, device=slot_ids.device)
    _finish_kernel[(count,)](
        slot_ids,
        step.positions,
        step.steps,
        codes,
        rows,
        state.rows,
        state.positions,
        state.steps,
        text_id,
        len(state.positions) - 1,
        W=width,
        WP=triton.next_power_of_2(width),
        num_warps=1,
        **early_launch(slot_ids),
    )
    return rows


def embed_rows(rows: Tensor, text_table: Tensor, code_table: Tensor, codebook_rows: int) -> Tensor:
    """See :func:`backends.kernels.step.embed_rows`. One launch."""
    (count, width), dim = rows.shape, text_table.shape[1]
    _check(rows, text_table, code_table)
    out = torch.empty((count, dim), dtype=text_table.dtype, device=rows.device)
    if count:
        _embed_kernel[(count, triton.cdiv(dim, _BLOCK))](
            rows,
            text_table,
            code_table,
            out,
            W=width,
            D=dim,
            CODEBOOK=codebook_rows,
            BLOCK=_BLOCK,
            num_warps=2,
            **early_launch(rows),
        )
    return out


def _check(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"a tensor {tuple(tensor.shape)} has strides {tensor.stride()}: it must be contiguous")
