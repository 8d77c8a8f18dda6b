"""Random cases of the kernels that make ids and keys, against the CPU's sampler and big integers."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from backends.kernels import Draws
from tests.kernel_cases import close, poisoned_empty


def check_row_keys(module: ModuleType, device: str) -> None:
    moduli, bases = (2**31 - 1, 2147483629), (1_000_000_007, 998_244_353)
    random = torch.Generator().manual_seed(1)
    for count, width in ((1, 1), (3, 7), (16, 13), (129, 33)):
        rows = torch.randint(-(2**62), 2**62, (count, width), generator=random)
        rows[0, 0], rows[-1, -1] = -(2**63), 2**63 - 1
        for given in (rows, rows.t().contiguous().t(), (rows % 2**31).to(torch.int32), -(rows % 2000)):
            want = []
            for row in given.tolist():
                first = second = 0
                for value in row:
                    first, second = (first * bases[0] + value) % moduli[0], (second * bases[1] + value) % moduli[1]
                want.append([first, second])
            assert module.row_keys_kernel(given.to(device), moduli, bases).tolist() == want
    assert module.row_keys_kernel(torch.zeros(0, 13, dtype=torch.int64, device=device), moduli, bases).shape == (0, 2)


def draws_for(rows: int, seed: int, device: str) -> Draws:
    """Rows of every kind: greedy, plain, with one filter, with both, at the edges of the ranges."""
    random = torch.Generator().manual_seed(seed)

    def pick(choices: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(choices, dtype=dtype)[torch.randint(len(choices), (rows,), generator=random)].to(device)

    return Draws(
        seeds=torch.randint(2**63 - 1, (rows,), generator=random).to(device),
        steps=torch.randint(4000, (rows,), generator=random).to(device),
        temperature=pick([0.0, 0.3, 0.8, 1.0, 1.7, 10.0], torch.float64),
        top_k=pick([0, 0, 1, 2, 25, 50, 1000, 5000], torch.int64),
        top_p=pick([1.0, 1.0, 1e-9, 0.2, 0.8, 0.95, 0.9999], torch.float64),
        channels=13,
    )


def check_sampling(module: ModuleType, device: str, dtype: torch.dtype, rows: int, width: int, seed: int) -> int:
    """Ids against the torch version on the CPU; returns how many differ (last bits of float64 may)."""
    from backends.kernels import sampling as reference

    random = torch.Generator().manual_seed(seed)
    logits = (4 * torch.randn(rows, width, generator=random)).to(dtype)
    logits[::5] = logits[::5].round()  # many ties
    if width > 8:
        logits[::7, : width // 2] = 0.0
        logits[::7, : width // 4] = -0.0
    draws, host = draws_for(rows, seed, device), draws_for(rows, seed, "cpu")
    channel = seed % 13
    with poisoned_empty():
        got = module.sample_ids(logits.to(device), draws, channel)
        greedy = module.sample_ids(logits.to(device), None, channel)
    assert torch.equal(greedy.cpu(), logits.argmax(-1))
    assert torch.equal(got[host.temperature == 0].cpu(), logits.argmax(-1)[host.temperature == 0])
    return int((got.cpu() != reference.sample_ids(logits, host, channel)).sum())


def check_sample_embed(module: ModuleType, device: str, dtype: torch.dtype, rows: int, dim: int) -> None:
    random = torch.Generator().manual_seed(dim)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(device, dtype)

    logits, table, position, weight, bias = draw(rows, 1024), draw(3000, dim), draw(dim), draw(dim), draw(dim)
    codes = torch.full((rows, 12), -1, device=device)
    for draws in (None, draws_for(rows, 3, device)):
        for at in (position, None):
            with poisoned_empty():
                ids, x, normed = module.sample_embed(
                    logits, draws, 2, table, 1025, at, weight, bias, 1e-6, out=codes[:, 4]
                )
            assert torch.equal(codes[:, 4], ids) and torch.equal(ids, module.sample_ids(logits, draws, 2))
            want = table[ids + 1025] if at is None else table[ids + 1025] + at
            assert torch.equal(x, want)
            wide = want.double().cpu()
            centred = wide - wide.mean(-1, keepdim=True)
            scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            close(normed, scaled * weight.double().cpu() + bias.double().cpu(), dtype)
    assert (codes[:, :4] == -1).all() and (codes[:, 5:] == -1).all()
