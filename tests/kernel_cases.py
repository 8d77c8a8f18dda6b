"""Random cases of every kernel against plain float64 references, for any implementation on any device.

The same checks run over the torch versions (CPU), over the Triton-language kernels in triton's interpreter (CPU) and
over them on a GPU. Outputs that a kernel must write in full are written over memory full of NaN, and so
is every line of a cache that no row owns.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

# Relative error in the 2-norm that rounding explains: 1e-3 ... 1e-2 is usual for bfloat16 operands.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
HEADS = [(6, 6), (32, 8), (16, 8), (20, 20)]


# Before anything imports triton: its own functions are bound to the interpreter, or not, when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def interpreted(name: str) -> ModuleType:
    """The Triton-language module ``name`` in triton's interpreter; skips, with a word, where that cannot be."""
    if torch.cuda.is_available():
        pytest.skip("a GPU is here: tests/gpu runs these kernels on it")
    pytest.importorskip("triton", reason="triton is not installed, so its interpreter cannot run the kernels")
    if os.environ["TRITON_INTERPRET"] != "1":
        pytest.skip("TRITON_INTERPRET is set to something else than 1")
    return importlib.import_module(f"backends.kernels.gpu.{name}")


def skip_truncation(kind: str, dtype: torch.dtype) -> None:
    """Skip exact sums in bfloat16 where triton's interpreter makes them."""
    if kind == "triton" and dtype is torch.bfloat16:
        pytest.skip("the interpreter of triton 3.6 cuts float32 to bfloat16 where a GPU rounds: left to tests/gpu")


def close(got: Tensor, want: Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    """``got`` equals the float64 ``want`` up to rounding of ``dtype``, and holds no NaN."""
    got, want = got.double().cpu(), want.double().cpu()
    assert got.shape == want.shape
    assert not got.isnan().any(), "something was not written, or was read that nobody owns"
    error = float((got - want).norm() / want.norm().clamp(min=1e-30))
    assert error <= TOLERANCE[dtype] * factor, f"relative error {error:.2e}"


@contextlib.contextmanager
def poisoned_empty() -> Iterator[None]:
    """Let ``torch.empty`` and ``empty_like`` hand out NaN (integers: -1), so that what is not written shows."""
    plain, plain_like = torch.empty, torch.empty_like

    def poison(tensor: Tensor) -> Tensor:
        return tensor.fill_(float("nan") if tensor.is_floating_point() else -1)

    torch.empty = lambda *args, **kwargs: poison(plain(*args, **kwargs))
    torch.empty_like = lambda *args, **kwargs: poison(plain_like(*args, **kwargs))
    try:
        yield
    finally:
        torch.empty, torch.empty_like = plain, plain_like


class AttentionCase:
    """A batch over a pool of pages in random order, everything that no row owns full of NaN."""

    def __init__(
        self,
        device: str,
        dtype: torch.dtype,
        heads: tuple[int, int],
        dim: int,
        page: int,
        lengths: list[int],
        max_pages: int,
        seed: int = 0,
    ) -> None:
        random = torch.Generator().manual_seed(seed)
        self.page, self.max_pages, self.device = page, max_pages, device
        self.q = torch.randn(len(lengths), heads[0], dim, generator=random).to(device, dtype)
        self.rows = [torch.randn(2, n, heads[1], dim, generator=random).to(device, dtype) for n in lengths]
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.scale = dim**-0.5

    def place(self, rows: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and page table of ``rows`` on pages dealt by ``seed``."""
        _, _, kv_heads, dim = self.rows[0].shape
        needed = [-(-self.rows[row].shape[1] // self.page) for row in rows]
        pool = sum(needed) + 3
        deal = torch.randperm(pool, generator=torch.Generator().manual_seed(seed)).tolist()
        shape = (pool, self.page, kv_heads, dim)
        keys, values = (torch.full(shape, float("nan"), dtype=self.q.dtype, device=self.device) for _ in range(2))
        # Entries past a row's pages point far outside: they must not be followed.
        table = torch.full((len(rows), self.max_pages), 2**30, dtype=torch.int32)
        for index, (row, count) in enumerate(zip(rows, needed, strict=True)):
            pages = [deal.pop() for _ in range(count)]
            table[index, :count] = torch.tensor(pages, dtype=torch.int32)
            lines = (torch.tensor(pages, dtype=torch.int64)[:, None] * self.page + torch.arange(self.page)).flatten()
            lines = lines[: self.rows[row].shape[1]].to(self.device)
            keys.view(-1, kv_heads, dim)[lines], values.view(-1, kv_heads, dim)[lines] = self.rows[row]
        return keys, values, table.to(self.device)

    def run(self, module: ModuleType, rows: list[int], seed: int = 0, **workspace: Any) -> Tensor:
        from backends.kernels import attention_workspace, split_keys_for

        keys, values, table = self.place(rows, seed)
        _, heads, dim = self.q.shape
        with poisoned_empty():
            space = attention_workspace(
                len(rows),
                heads,
                dim,
                self.max_pages,
                self.page,
                torch.device(self.device),
                **{"split_keys": split_keys_for(self.q.dtype)} | workspace,
            )
            out: Tensor = module.paged_decode_attention(
                self.q[rows], keys, values, table, self.lengths[rows], self.scale, space
            )
        assert not space.counters.any(), "the counters were not put back"
        return out

    def reference(self) -> Tensor:
        """Plain float64 attention [B, H, D]."""
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        for row, kv in enumerate(self.rows):
            if not kv.shape[1]:
                continue
            k, v = kv.double().cpu().repeat_interleave(self.q.shape[1] // kv.shape[2], dim=2)
            scores = torch.einsum("hd,nhd->hn", self.q[row].double().cpu(), k) * self.scale
            out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), v)
        return out


def check_attention(module: ModuleType, case: AttentionCase, **workspace: Any) -> None:
    everyone = list(range(len(case.rows)))
    out = case.run(module, everyone, **workspace)
    close(out, case.reference(), case.q.dtype)
    assert not out[case.lengths == 0].any()


def check_attention_invariance(module: ModuleType, case: AttentionCase, alone: list[int], **workspace: Any) -> None:
    """The same bits for a row alone, among all, at another place and on other pages."""
    everyone = list(range(len(case.rows)))
    out = case.run(module, everyone, **workspace)
    assert torch.equal(case.run(module, everyone, seed=5, **workspace), out)
    back = everyone[::-1]
    assert torch.equal(case.run(module, back, seed=6, **workspace), out[back])
    for row in alone:
        assert torch.equal(case.run(module, [row], seed=7, **workspace)[0], out[row])


def check_norms(module: ModuleType, device: str, dtype: torch.dtype, count: int, dim: int) -> None:
    random = torch.Generator().manual_seed(dim)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(device, dtype)

    x, residual, weight, bias, x_bias = draw(count, dim), draw(count, dim), draw(dim), draw(dim), draw(dim)
    total = x + residual
    wide = total.double().cpu()
    w, b = weight.double().cpu(), bias.double().cpu()
    with poisoned_empty():
        normed, got = module.add_rms_norm(x, residual, weight, 1e-6)
        alone, same = module.add_rms_norm(x, None, weight, 1e-6)
    assert torch.equal(got, total) and torch.equal(same, x)
    close(normed, wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w, dtype)
    wide_x = x.double().cpu()
    close(alone, wide_x / (wide_x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w, dtype)
    assert torch.equal(module.add_rms_norm(x[1:2], residual[1:2], weight, 1e-6)[0][0], normed[1])

    def reference(t: Tensor) -> Tensor:
        t = t.double().cpu()
        return (t - t.mean(-1, keepdim=True)) / (t.var(-1, correction=0, keepdim=True) + 1e-6).sqrt() * w + b

    for r, xb in ((residual, x_bias), (residual[0], None), (None, x_bias)):
        total = x if xb is None else x + xb
        total = total if r is None else total + r
        with poisoned_empty():
            normed, got = module.add_layer_norm(x, r, weight, bias, 1e-6, xb)
        assert torch.equal(got, total)
        close(normed, reference(total), dtype)
    assert torch.equal(module.add_layer_norm(x[1:2], None, weight, bias, 1e-6, x_bias)[0][0], normed[1])


def check_qk_norm_rope_store(
    module: ModuleType, device: str, dtype: torch.dtype, heads: tuple[int, int], dim: int, page: int, count: int
) -> None:
    random = torch.Generator().manual_seed(count)
    h, kv = heads
    qkv = torch.randn(count, (h + 2 * kv) * dim, generator=random).to(device, dtype)
    q_weight, k_weight = (torch.randn(dim, generator=random).to(device, dtype) for _ in range(2))
    angles = torch.arange(300)[:, None] * 1e4 ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = (t.repeat(1, 2).to(device) for t in (angles.cos(), angles.sin()))
    positions = torch.randint(300, (count,), generator=random)
    pages = -(-count // page) + 2
    lines = torch.randperm(pages * page, generator=random)[:count]
    keys, values = (torch.full((pages, page, kv, dim), float("nan"), dtype=dtype, device=device) for _ in range(2))
    args = (q_weight, k_weight, 1e-6, cos, sin)
    with poisoned_empty():
        q = module.qk_norm_rope_store(qkv, *args, positions.to(device), keys, values, lines.to(device))
    wide = qkv.double().cpu().view(count, -1, dim)
    c, s = cos.double().cpu()[positions][:, None], sin.double().cpu()[positions][:, None]

    def reference(x: Tensor, weight: Tensor) -> Tensor:
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double().cpu()
        return x * c + torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), -1) * s

    close(q, reference(wide[:, :h], q_weight), dtype)
    close(keys.view(-1, kv, dim)[lines], reference(wide[:, h : h + kv], k_weight), dtype)
    assert torch.equal(values.view(-1, kv, dim)[lines].cpu(), qkv.cpu().view(count, -1, dim)[:, h + kv :])
    untouched = torch.ones(pages * page, dtype=torch.bool)
    untouched[lines] = False
    assert keys.view(-1, kv, dim)[untouched].isnan().all() and values.view(-1, kv, dim)[untouched].isnan().all()
    keys_alone, values_alone = torch.zeros_like(keys), torch.zeros_like(values)
    alone = module.qk_norm_rope_store(
        qkv[-1:], *args, positions[-1:].to(device), keys_alone, values_alone, lines[-1:].to(device)
    )
    assert torch.equal(alone[0], q[-1])
    at = int(lines[-1])
    assert torch.equal(keys_alone.view(-1, kv, dim)[at], keys.view(-1, kv, dim)[at])


def check_activations(module: ModuleType, device: str, dtype: torch.dtype, count: int, inner: int) -> None:
    random = torch.Generator().manual_seed(inner)
    x = (3 * torch.randn(count, 2 * inner, generator=random)).to(device, dtype)
    bias = torch.randn(2 * inner, generator=random).to(device, dtype)
    gate, up = x.double().cpu().chunk(2, dim=-1)
    with poisoned_empty():
        got = module.silu_mul(x)
    close(got, torch.nn.functional.silu(gate) * up, dtype)
    assert torch.equal(module.silu_mul(x[1:2])[0], got[1])
    references: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_new": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    }
    for name, reference in references.items():
        for b in (bias, None):
            total = x if b is None else x + b
            with poisoned_empty():
                got = module.bias_activation(x, b, name)
            close(got, reference(total.double().cpu()), dtype)


def check_frame_attention(
    module: ModuleType, device: str, dtype: torch.dtype, batch: int, heads: int, dim: int, positions: int, rope: bool
) -> None:
    random = torch.Generator().manual_seed(dim)
    steps = torch.randn(positions, batch, 3 * heads * dim, generator=random).to(device, dtype)
    angles = torch.arange(positions)[:, None] * 1e6 ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = (angles.cos().to(device), angles.sin().to(device)) if rope else (None, None)
    shape = (2, batch, heads, positions, dim)
    cache = torch.full(shape, float("nan"), dtype=dtype, device=device)
    alone = torch.full((2, 1, *shape[2:]), float("nan"), dtype=dtype, device=device)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for position in range(positions):
        with poisoned_empty():
            out = module.frame_attention(steps[position], cache, position, dim**-0.5, cos, sin)
            single = module.frame_attention(steps[position, -1:], alone, position, dim**-0.5, cos, sin)
        q, k, v = steps[position].double().cpu().view(batch, 3, heads, dim).unbind(1)
        if rope:
            turn = torch.polar(torch.ones(dim // 2, dtype=torch.float64), angles[position].double())
            q, k = (
                torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)
                for t in (q, k)
            )
        keys.append(k)
        values.append(v)
        scores = torch.einsum("bhd,nbhd->bhn", q, torch.stack(keys)) * dim**-0.5
        want = torch.einsum("bhn,nbhd->bhd", scores.softmax(-1), torch.stack(values))
        close(out, want.flatten(1), dtype, factor=2.0)
        assert torch.equal(single[0], out[-1])
        assert cache[:, :, :, position + 1 :].isnan().all() and not cache[:, :, :, : position + 1].isnan().any()
