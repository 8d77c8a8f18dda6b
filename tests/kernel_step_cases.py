"""Random cases of the kernels around the model, against plain loops."""

from __future__ import annotations

from types import ModuleType

import torch

from backends.kernels import SlotState
from tests.kernel_cases import poisoned_empty


def check_step(module: ModuleType, device: str, pages: int, page_rows: int) -> None:
    """Slots in any order, the scratch slot (the last) several times over."""
    slots, width = 9, 13
    random = torch.Generator().manual_seed(pages)
    rows = torch.randint(1025, (slots, width), generator=random)
    positions = torch.randint(pages * page_rows, (slots,), generator=random)
    steps = torch.randint(1000, (slots,), generator=random)
    tables = torch.randint(5000, (slots, pages), generator=random, dtype=torch.int32)
    codes = torch.randint(1024, (6, width - 1), generator=random)
    slot_ids = torch.tensor([7, 0, 8, 3, 8, 8])
    state = SlotState(*(tensor.clone().to(device) for tensor in (rows, positions, steps)))
    with poisoned_empty():
        step = module.begin_step(slot_ids.to(device), state, tables.to(device), page_rows)
        made = module.finish_step(slot_ids.to(device), step, codes.to(device), 77, state)
    for at, slot in enumerate(slot_ids.tolist()):
        position = int(positions[slot])
        line = int(tables[slot, position // page_rows]) * page_rows + position % page_rows
        assert step.rows[at].tolist() == rows[slot].tolist() and step.tables[at].tolist() == tables[slot].tolist()
        numbers = (step.positions[at], step.steps[at], step.lengths[at], step.lines[at])
        assert [int(number) for number in numbers] == [position, int(steps[slot]), position + 1, line]
        assert made[at].tolist() == [77, *codes[at].tolist()]
        if slot < slots - 1:
            rows[slot], positions[slot], steps[slot] = made[at].cpu(), position + 1, steps[slot] + 1
    for after, want in zip((state.rows, state.positions, state.steps), (rows, positions, steps), strict=True):
        assert torch.equal(after.cpu(), want)


def check_embed_rows(module: ModuleType, device: str, dtype: torch.dtype, dim: int) -> None:
    """Against float64, rounded where the contract says; ids past a codebook mean its row of zeros."""
    random = torch.Generator().manual_seed(dim)
    codebooks, size = 5, 21
    text = torch.randn(40, dim, generator=random).to(dtype)
    table = torch.randn(codebooks, size, dim, generator=random).to(dtype)
    table[:, -1] = 0
    rows = torch.randint(20, (17, 1 + codebooks), generator=random)
    rows[1, 1:], rows[2, 3] = size - 1, 1000
    with poisoned_empty():
        got = module.embed_rows(rows.to(device), text.to(device), table.flatten(0, 1).to(device), size).cpu()
    codes = rows[:, 1:].clamp(max=size - 1)
    summed = torch.stack([table[at, codes[:, at]].double() for at in range(codebooks)]).sum(dim=0)
    want = summed.to(dtype).double() + text[rows[:, 0]].double()
    assert not got.isnan().any() and torch.equal(got[1], text[rows[1, 0]])
    # A sum in float32 may round to the next number of the dtype.
    assert ((got.double() - want).abs() <= 2 * torch.finfo(dtype).eps * (summed.abs() + want.abs() + 1)).all()
    alone = torch.cat([module.embed_rows(r.to(device), text.to(device), table.flatten(0, 1).to(device), size)
                       for r in rows.split(1)])  # fmt: skip
    assert torch.equal(alone.cpu(), got)
