"""Streams in rings against plain float64 attention over everything a stream has said, on any device."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from tests.kernel_cases import close, poisoned_empty


class RingCase:
    """Streams of random q, k, v, fed in chunks to rings that hold NaN wherever nothing was stored."""

    def __init__(
        self,
        device: str,
        dtype: torch.dtype,
        heads: int = 2,
        window: int = 70,
        block: int = 16,
        lines: int = 100,
        length: int = 200,
        streams: int = 3,
    ) -> None:
        random = torch.Generator().manual_seed(window + block)
        self.device, self.dtype, self.heads = device, dtype, heads
        self.window, self.block, self.lines, self.length = window, block, lines, length
        self.qkv = torch.randn(streams, length, 3 * heads * 64, generator=random).to(device, dtype)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * 10_000 ** (-torch.arange(32) / 32)
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)

    def rings(self) -> tuple[Tensor, Tensor]:
        shape = (len(self.qkv) + 2, self.heads, self.lines, 64)
        keys, values = (torch.full(shape, math.nan, dtype=self.dtype, device=self.device) for _ in range(2))
        return keys, values

    def chunk(
        self, module: ModuleType, rings: tuple[Tensor, Tensor], members: list[int], starts: list[int], steps: int
    ) -> Tensor:
        """The next ``steps`` rows of ``members``, which stand at ``starts``: [members, steps, heads * 64]."""
        at = [slice(start, start + steps) for start in starts]
        qkv = torch.cat([self.qkv[m, part] for m, part in zip(members, at, strict=True)])
        cos, sin = (torch.stack([table[part] for part in at]) for table in (self.cos, self.sin))
        where = torch.tensor([len(self.qkv) - m for m in members], device=self.device)
        begin = torch.tensor(starts, device=self.device)
        with poisoned_empty():
            q = module.rope_ring_store(qkv, cos, sin, begin, where, *rings)
            mixed: Tensor = module.ring_attention(q, *rings, begin, where, self.window, self.block)
        return mixed.view(len(members), steps, -1)

    def stream(self, module: ModuleType, member: int, sizes: list[int]) -> Tensor:
        """One stream alone, cut into ``sizes``."""
        rings, at, made = self.rings(), 0, []
        for size in sizes:
            made.append(self.chunk(module, rings, [member], [at], size)[0])
            at += size
        return torch.cat(made)

    def reference(self, member: int) -> Tensor:
        qkv = self.qkv[member].double().view(self.length, 3, self.heads, 2, 32)
        cos, sin = self.cos.double()[:, None, None], self.sin.double()[:, None, None]
        first, second = qkv[:, :2].unbind(3)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        q, k = turned.to(self.dtype).double().unbind(1)
        v = qkv[:, 2].reshape(self.length, self.heads, 64)
        scores = torch.einsum("lhd,khd->hlk", q, k) / 8
        behind = torch.arange(self.length)[:, None] - torch.arange(self.length)
        seen = ((behind >= 0) & (behind < self.window)).to(self.device)
        share = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("hlk,khd->lhd", share, v).flatten(1)


def check_ring(module: ModuleType, case: RingCase, sizes: list[int]) -> None:
    """Equal to float64, and nothing read that is not the stream's."""
    close(case.stream(module, 0, sizes), case.reference(0), case.dtype, 2.0)


def check_ring_invariance(module: ModuleType, case: RingCase, cuts: list[list[int]]) -> None:
    """The bits of a stream do not depend on its cuts, nor on the streams that share the calls."""
    alone = case.stream(module, 1, cuts[0])
    for sizes in cuts[1:]:
        assert torch.equal(case.stream(module, 1, sizes), alone), sizes
    rings, made = case.rings(), []
    others = {0: 0, 2: 0}
    size, at = case.length // 10, 0
    for turn in range(10):
        members = [[0, 1, 2], [1], [2, 1], [1, 0]][turn % 4]
        starts = [at if m == 1 else others[m] for m in members]
        made.append(case.chunk(module, rings, members, starts, size)[members.index(1)])
        at += size
        for m in members:
            if m != 1:
                others[m] += size
    assert torch.equal(torch.cat(made), alone)


def check_accumulate(module: ModuleType, device: str, dtype: torch.dtype, rows: int, width: int) -> None:
    random = torch.Generator().manual_seed(width)
    total, x, weight, bias = (torch.randn(size, generator=random) for size in ((rows, width),) * 2 + ((width,),) * 2)
    x = x.to(dtype)
    want = total.double() + x.double()
    sums, weight, bias = total.to(device), weight.to(device), bias.to(device)
    for added in (x.to(device), None):
        with poisoned_empty():
            got = module.accumulate_layer_norm(sums, added, weight, bias, 1e-5, dtype)
        assert got.dtype is dtype
        close(sums, want, torch.float32)
        normed = torch.nn.functional.layer_norm(want, (width,), weight.double().cpu(), bias.double().cpu(), 1e-5)
        close(got, normed, dtype)
