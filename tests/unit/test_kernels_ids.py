"""Sampling and row keys: torch versions and kernels in triton's interpreter against the sampler and big integers."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import torch

from backends.decoder.sampler import Sampler, SamplingParams
from backends.kernels import row_key, row_keys_kernel, sample_embed, sample_ids, sampling
from backends.kernels.sampling import choose_unasked
from tests.kernel_cases import interpreted, skip_truncation
from tests.kernel_id_cases import check_row_keys, check_sample_embed, check_sampling, draws_for


def module(kind: str, name: str) -> ModuleType:
    return {"sampling": sampling, "row_key": row_key}[name] if kind == "torch" else interpreted(name)


@pytest.mark.parametrize("width", [2, 100, 1024, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_draws_the_ids_of_the_torch_version(width: int, dtype: torch.dtype) -> None:
    differing = sum(check_sampling(interpreted("sampling"), "cpu", dtype, 24, width, seed) for seed in range(3))
    assert differing == 0


def test_the_torch_version_draws_the_ids_of_the_sampler() -> None:
    logits = torch.randn(40, 1024, generator=torch.Generator().manual_seed(0))
    draws = draws_for(40, 0, "cpu")
    sampler = Sampler(40, 13, 1024, torch.device("cpu"))
    columns = (draws.seeds, draws.temperature, draws.top_p, draws.top_k)
    for slot, (seed, temperature, top_p, top_k) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        sampler.set_slot(slot, SamplingParams(seed, temperature, top_p, top_k, text_temperature=1.0))
    sampler.begin(torch.arange(40), draws.steps, True)
    for codebook in (0, 11):
        assert torch.equal(sample_ids(logits, draws, codebook + 1), sampler.code(logits, codebook))


def test_a_step_that_asks_the_device_nothing_draws_the_same_ids() -> None:
    """What a GPU does for a text vocabulary; here on the CPU, beside the version that looks at the parameters."""
    logits = 3 * torch.randn(24, 20_000, generator=torch.Generator().manual_seed(1))
    draws = draws_for(24, 0, "cpu")
    assert 0 < int((draws.temperature > 0).sum()) < 24
    assert torch.equal(choose_unasked(logits, draws, 1), sample_ids(logits, draws, 1))
    assert torch.equal(choose_unasked(logits, None, 1), logits.argmax(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sample_embed(kind: str, dtype: torch.dtype) -> None:
    skip_truncation(kind, dtype)
    check_sample_embed(module(kind, "sampling"), "cpu", dtype, 4, 384)


def test_row_keys(kind: str) -> None:
    check_row_keys(module(kind, "row_key"), "cpu")


def test_misfits_are_refused() -> None:
    with pytest.raises(ValueError, match="2\\^31"):
        row_keys_kernel(torch.zeros(1, 1, dtype=torch.int64), (2**31, 7), (3, 3))
    wide, row = torch.zeros(1, 4096), torch.zeros(4)
    with pytest.raises(ValueError, match="at most 2048"):
        sample_embed(wide, None, 0, torch.zeros(4096, 4), 0, None, row, row, 1e-5)
    with pytest.raises(ValueError, match="float64"):
        sample_ids(torch.zeros(1, 4, dtype=torch.float64), None, 0)


def test_the_package_imports_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import backends.kernels"
    subprocess.run([sys.executable, "-c", code], check=True)
