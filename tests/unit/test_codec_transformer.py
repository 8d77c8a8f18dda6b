"""The streaming transformer against the published formula written out in float64, for sizes no checkpoint here has."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from backends.models.causal_transformer import CausalTransformer, TransformerSpec
from backends.models.named_tensors import RandomTensors
from backends.models.ring_transformer import RingTransformer

torch.set_num_threads(1)


class Recorder(RandomTensors):
    """Random weights that a test can look at afterwards."""

    def __init__(self) -> None:
        super().__init__(3, torch.device("cpu"), torch.float32)
        self.taken: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        self.taken[name] = super().take(name, *shape)
        return self.taken[name]


def published(spec: TransformerSpec, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """``x`` [L, input_dim] -> [L, output_dim], all in float64 with one explicit mask."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    x = x.double()
    steps = x.shape[0]
    position = torch.arange(steps)
    distance = position[:, None] - position[None]
    allowed = (distance >= 0) & (distance < spec.window)
    frequency = spec.max_period ** (-2 * torch.arange(32, dtype=torch.float64) / 64)
    turn = torch.polar(torch.ones(steps, 32, dtype=torch.float64), position[:, None] * frequency)
    if "s.input_proj.weight" in w:
        x = x @ w["s.input_proj.weight"].t()
    for i in range(spec.layers):
        name = f"s.transformer.layers.{i}"
        normed = F.layer_norm(x, (spec.width,), w[f"{name}.norm1.weight"], w[f"{name}.norm1.bias"], 1e-5)
        q, k, v = (
            (normed @ w[f"{name}.self_attn.in_projs.0.weight"].t()).view(steps, 3, spec.heads, 64).permute(1, 2, 0, 3)
        )
        q, k = (
            torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (32, 2)).contiguous()) * turn).flatten(-2)
            for t in (q, k)
        )
        scores = (q @ k.transpose(1, 2) / math.sqrt(64)).masked_fill(~allowed, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(steps, -1)
        scale1, scale2 = (w.get(f"{name}.layer_scale_{n}.scale", torch.ones(())) for n in (1, 2))
        x = x + scale1 * (mixed @ w[f"{name}.self_attn.out_projs.0.weight"].t())
        normed = F.layer_norm(x, (spec.width,), w[f"{name}.norm2.weight"], w[f"{name}.norm2.bias"], 1e-5)
        x = x + scale2 * (F.gelu(normed @ w[f"{name}.linear1.weight"].t()) @ w[f"{name}.linear2.weight"].t())
    return x @ w["s.output_proj.weight"].t() if "s.output_proj.weight" in w else x


SPECS = [
    TransformerSpec(64, 64, 64, 1, 2, 128, True, 10_000.0, rate=1, window=1),
    TransformerSpec(48, 32, 128, 2, 2, 256, False, 10_000.0, rate=3, window=7),
    TransformerSpec(128, 80, 128, 2, 1, 96, True, 500.0, rate=8, window=16),
    TransformerSpec(30, 64, 64, 1, 2, 128, True, 10_000.0, rate=12, window=100),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"rate{s.rate}window{s.window}")
@torch.inference_mode()
def test_equals_the_published_formula_whole_and_chunked(spec: TransformerSpec) -> None:
    tensors = Recorder()
    stage = CausalTransformer(spec, tensors, "s")
    frames = 40
    x = torch.randn(frames * spec.rate, spec.input_dim, generator=torch.Generator().manual_seed(1))
    wanted = published(spec, tensors.taken, x)
    for chunk in (frames, 1, 7):
        history, slots = stage.new_history(3), torch.tensor([1])
        made = [
            stage.forward(part[None], torch.tensor([at * chunk]), slots, history)[0]
            for at, part in enumerate(x.split(chunk * spec.rate))
        ]
        assert (torch.cat(made) - wanted).abs().max() < 2e-5, chunk
        assert not history[:, :, [0, 2]].any(), "another slot was written"


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"rate{s.rate}window{s.window}")
@torch.inference_mode()
def test_rings_equal_the_published_formula(spec: TransformerSpec) -> None:
    """The GPU's stage on the torch versions of its kernels, over rings that turn several times."""
    tensors, frames = Recorder(), 40
    stage = RingTransformer(spec, tensors, "s", torch.float32, exact_output=True)
    x = torch.randn(frames * spec.rate, spec.input_dim, generator=torch.Generator().manual_seed(1))
    wanted = published(spec, tensors.taken, x)
    for chunk in (1, 7):
        history, slots = stage.new_history(3, chunk), torch.tensor([1])
        history[:, :, 1] = math.nan  # what a fresh stream must not see
        made = [
            stage.forward(part[None], torch.tensor([at * chunk]), slots, history)[0]
            for at, part in enumerate(x.split(chunk * spec.rate))
        ]
        assert (torch.cat(made) - wanted).abs().max() < 2e-5, chunk
        assert not history[:, :, [0, 2]].any(), "another slot was written"


@torch.inference_mode()
def test_bfloat16_keeps_the_residual_stream_and_the_samples_exact() -> None:
    spec = SPECS[2]
    tensors = Recorder()
    stage = RingTransformer(spec, tensors, "s", torch.bfloat16, exact_output=True)
    x = torch.randn(20 * spec.rate, spec.input_dim, generator=torch.Generator().manual_seed(1))
    start = torch.zeros(1, dtype=torch.int64)
    got = stage.forward(x[None], start, start, stage.new_history(1, 20))[0]
    wanted = published(spec, tensors.taken, x)
    assert got.dtype is torch.float32
    assert (got.double() - wanted).norm() / wanted.norm() < 1e-2
    assert not torch.equal(got, got.bfloat16().float()), "the samples were rounded to bfloat16"
