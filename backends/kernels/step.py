"""Around the model: what a decode step needs to know before it, and what it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SlotState:
    """What the next step reads, by slot; the last slot is scratch, whose state never moves.

    ``rows`` int64 [slots, W]: the input row; ``positions`` and ``steps`` int64 [slots]: where it stands, and how many
    frames its request has made.
    """

    rows: Tensor
    positions: Tensor
    steps: Tensor


@dataclass(frozen=True, slots=True)
class StepInput:
    """The same for the rows of one step, gathered: ``rows`` int64 [B, W], ``positions`` and ``steps`` int64 [B].

    ``tables`` int32 [B, pages] maps positions to pages, ``lengths`` int32 [B] counts a row's keys with its own,
    ``lines`` int64 [B] says where its key is stored among the lines of all pages.
    """

    rows: Tensor
    positions: Tensor
    steps: Tensor
    tables: Tensor
    lengths: Tensor
    lines: Tensor


def begin_step(slot_ids: Tensor, state: SlotState, tables: Tensor, page_rows: int) -> StepInput:
    """Gather the state and the page table (int32 [slots, pages]) of ``slot_ids`` int64 [B]."""
    if slot_ids.is_cuda:
        from backends.kernels.gpu import step as gpu

        return gpu.begin_step(slot_ids, state, tables, page_rows)
    positions, own = state.positions[slot_ids], tables[slot_ids]
    page = own.gather(1, (positions // page_rows).unsqueeze(1)).squeeze(1).long()
    return StepInput(
        rows=state.rows[slot_ids],
        positions=positions,
        steps=state.steps[slot_ids],
        tables=own,
        lengths=(positions + 1).to(torch.int32),
        lines=page * page_rows + positions % page_rows,
    )


def finish_step(slot_ids: Tensor, step: StepInput, codes: Tensor, text_id: int, state: SlotState) -> Tensor:
    """Make ``[text_id, *codes]`` the next input row of each slot, one position and one step on; returns these rows.

    ``codes`` int64 [B, W - 1]. The scratch slot, which may stand there more than once, stays as it is. Returns int64
    [B, W].
    """
    if slot_ids.is_cuda:
        from backends.kernels.gpu import step as gpu

        return gpu.finish_step(slot_ids, step, codes, text_id, state)
    rows = F.pad(codes, (1, 0), value=text_id)
    real = slot_ids < len(state.positions) - 1
    slots = slot_ids[real]
    state.rows[slots] = rows[real]
    state.positions[slots] = step.positions[real] + 1
    state.steps[slots] = step.steps[real] + 1
    return rows


def embed_rows(rows: Tensor, text_table: Tensor, code_table: Tensor, codebook_rows: int) -> Tensor:
    """The text embedding of each row plus the sum of its codes' [N, D].

    ``rows`` int64 [N, 1 + codebooks]; ``text_table`` [vocabulary, D]; ``code_table`` [codebooks x codebook_rows, D],
    whose last row of each codebook is zeros: ids above mean it. The codes are summed in float32 and rounded, then the
    text is added and the sum rounded.
    """
    if rows.is_cuda:
        from backends.kernels.gpu import step as gpu

        return gpu.embed_rows(rows, text_table, code_table, codebook_rows)
    codes = rows[:, 1:].clamp(max=codebook_rows - 1)
    codes = codes + torch.arange(codes.shape[1]) * codebook_rows
    return F.embedding(rows[:, 0], text_table) + F.embedding(codes, code_table).sum(dim=1)
