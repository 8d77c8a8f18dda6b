"""Every kernel on a GPU: against float64, row by row bit-equal in any company, in a graph, without host syncs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from backends import kernels
from backends.kernels import activation, attention, frame, norm, prefill, rope, row_key, sampling
from backends.kernels import step as step_kernels
from tests import kernel_cases as cases
from tests import kernel_id_cases as id_cases
from tests.gpu.graph_replay import check_graph
from tests.kernel_prefill_cases import PrefillCase, check_prefill, check_prefill_invariance
from tests.kernel_step_cases import check_embed_rows, check_step

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [1, 0, 15, 16, 17, 127, 128, 129, 200, 256, 257, 511, 640, 1000, 1023, 1024]


@pytest.fixture(autouse=True)
def _exact_torch() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [*cases.HEADS, (12, 4), (64, 4)])
@pytest.mark.parametrize("page", [16, 32, 64])
@pytest.mark.parametrize("dim", [64, 128])
def test_attention(dtype: torch.dtype, heads: tuple[int, int], page: int, dim: int) -> None:
    case = cases.AttentionCase("cuda", dtype, heads, dim, page, LENGTHS, 1024 // page)
    cases.check_attention(attention, case)


@pytest.mark.parametrize("split_keys", [64, 128, 256])
@pytest.mark.parametrize("heads", [(32, 8), (6, 6)])
def test_fused_and_separate_combination_give_the_same_bits(split_keys: int, heads: tuple[int, int]) -> None:
    case = cases.AttentionCase("cuda", torch.bfloat16, heads, 128, 16, [4000, *LENGTHS], 256)
    everyone = list(range(len(LENGTHS) + 1))
    fused = case.run(attention, everyone, split_keys=split_keys)
    for _ in range(20):  # the order of arrival differs from run to run, the bits may not
        assert torch.equal(case.run(attention, everyone, split_keys=split_keys), fused)
    assert torch.equal(case.run(attention, everyone, split_keys=split_keys, fused=False), fused)
    cases.close(fused, case.reference(), torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", cases.HEADS)
def test_attention_of_a_row_among_63_others(dtype: torch.dtype, heads: tuple[int, int]) -> None:
    lengths = [(37 * i) % 900 for i in range(64)]
    case = cases.AttentionCase("cuda", dtype, heads, 128, 16, lengths, 57)
    cases.check_attention_invariance(attention, case, [1, 7, 30, 63])


PIECES = [(0, 32), (0, 5), (0, 0), (96, 128), (32, 49), (64, 96), (992, 1024), (512, 513)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", cases.HEADS)
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("dim", [64, 128])
def test_prefill_attention(dtype: torch.dtype, heads: tuple[int, int], page: int, dim: int) -> None:
    case = PrefillCase("cuda", dtype, heads, dim, page, 32, PIECES)
    check_prefill(prefill, case)
    check_prefill_invariance(prefill, case)


@pytest.mark.parametrize("rows", [16, 64, 128])
def test_prefill_attention_of_pieces_of_other_sizes(rows: int) -> None:
    case = PrefillCase("cuda", torch.bfloat16, (32, 8), 128, 16, rows, [(0, rows), (rows, rows + 7), (512, 512 + rows)])
    check_prefill(prefill, case)
    check_prefill_invariance(prefill, case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [384, 1024, 2560, 4096])
@pytest.mark.parametrize("count", [2, 64])
def test_norms(dtype: torch.dtype, dim: int, count: int) -> None:
    cases.check_norms(norm, "cuda", dtype, count, dim)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", cases.HEADS)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("count", [1, 64])
def test_qk_norm_rope_store(dtype: torch.dtype, heads: tuple[int, int], dim: int, count: int) -> None:
    cases.check_qk_norm_rope_store(rope, "cuda", dtype, heads, dim, 16, count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [96, 1536, 9728])
def test_activations(dtype: torch.dtype, inner: int) -> None:
    cases.check_activations(activation, "cuda", dtype, 16, inner)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("shape", [(6, 64, 13), (32, 80, 13), (20, 64, 33), (8, 128, 33)])
def test_frame_attention(dtype: torch.dtype, rope: bool, shape: tuple[int, int, int]) -> None:
    cases.check_frame_attention(frame, "cuda", dtype, 16, *shape, rope)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [2, 100, 1024, 2048])
def test_sampling_draws_the_ids_of_the_cpu(dtype: torch.dtype, width: int) -> None:
    rows, runs = 64, 40
    differing = sum(id_cases.check_sampling(sampling, "cuda", dtype, rows, width, seed) for seed in range(runs))
    print(f"\nids that differ from the CPU's, {dtype}, V = {width}: {differing} of {rows * runs}")
    # A float64 logarithm may differ in its last bit; two scores that close are rarer than one in 10^9.
    assert differing == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [384, 2560])
def test_sample_embed(dtype: torch.dtype, dim: int) -> None:
    id_cases.check_sample_embed(sampling, "cuda", dtype, 16, dim)


def test_a_draw_does_not_depend_on_its_place() -> None:
    logits = torch.randn(64, 1024, device="cuda")
    draws = id_cases.draws_for(64, 1, "cuda")
    ids = sampling.sample_ids(logits, draws, 5)
    for row in range(64):
        at = slice(row, row + 1)
        filters = draws.top_k[at], draws.top_p[at]
        alone = kernels.Draws(draws.seeds[at], draws.steps[at], draws.temperature[at], *filters, 13)
        assert torch.equal(sampling.sample_ids(logits[at], alone, 5), ids[at])


def test_row_keys() -> None:
    id_cases.check_row_keys(row_key, "cuda")


@pytest.mark.parametrize("pages", [1, 40, 1000])
def test_step(pages: int) -> None:
    check_step(step_kernels, "cuda", pages, 16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [384, 2560])
def test_embed_rows(dtype: torch.dtype, dim: int) -> None:
    check_embed_rows(step_kernels, "cuda", dtype, dim)


def _step(x: Tensor, lengths: Tensor) -> Callable[[], list[Tensor]]:
    """A call of every kernel over buffers that stay in place, as a decode step would make it."""
    batch, bf16, cuda = len(x), torch.bfloat16, torch.device("cuda")
    random = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=cuda).to(bf16)

    weight, bias, qkv_weight, small = draw(256), draw(256), draw(256, 8 * 64), draw(64)
    keys, values = draw(40, 16, 2, 64), draw(40, 16, 2, 64)
    table = torch.randperm(39, device=cuda)[: 4 * batch].view(batch, -1).int()
    cos, sin = draw(64, 64), draw(64, 64)
    space = kernels.attention_workspace(batch, 4, 64, table.shape[1], 16, cuda, split_keys=16)
    cache, code_table = draw(2, batch, 4, 13, 64), draw(2000, 256)
    draws = id_cases.draws_for(batch, 0, "cuda")

    def step() -> list[Tensor]:
        normed, total = kernels.add_rms_norm(x, x, weight, 1e-6)
        positions = lengths.long() - 1
        lines = table[torch.arange(batch, device=cuda), positions // 16].long() * 16 + positions % 16
        q = kernels.qk_norm_rope_store(
            normed @ qkv_weight, small, small, 1e-6, cos, sin, positions, keys, values, lines
        )
        mixed = kernels.paged_decode_attention(q, keys, values, table, lengths, 0.125, space).flatten(1)
        inner = kernels.silu_mul(torch.cat((mixed, total), dim=-1))
        inner = kernels.bias_activation(inner, bias, "silu")
        local = kernels.frame_attention(torch.cat((inner, mixed, total), dim=-1), cache, 2, 0.125)
        ids, _, normed = kernels.sample_embed(
            torch.cat((local, inner), dim=-1), draws, 1, code_table, 1024, bias, weight, bias, 1e-6
        )
        stop = kernels.sample_ids(normed[:, :2], draws, 0)
        return [mixed, local, ids, normed, stop, kernels.row_keys_kernel(ids[:, None], (2**31 - 1, 101), (7, 5))]

    return step


def test_graph_replay_equals_eager_and_nothing_waits_for_the_host() -> None:
    x = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([1, 3, 16, 17, 40, 64, 5, 33], dtype=torch.int32, device="cuda")

    def refill(random: torch.Generator) -> None:
        x.copy_(torch.randn(8, 256, generator=random))
        lengths.copy_(torch.randint(1, 65, (8,), generator=random))

    check_graph(_step(x, lengths), refill)
