"""Sampling: the distribution is right, and nothing but the request decides the draw."""

from __future__ import annotations

import math

import pytest
import torch

from backends.decoder.sampler import Sampler, SamplingParams
from backends.kernels.noise import gumbel_noise, keep_mask, uniform_noise

M = 1 << 64


def splitmix(state: int) -> int:
    z = state % M
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % M
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % M
    return z ^ (z >> 31)


def test_noise_equals_a_big_integer_reference() -> None:
    gamma = 0x9E3779B97F4A7C15
    seeds, steps, channels, width = [0, 1, 2**63 - 1, 123456789], [0, 5, 4095, 7], 13, 9
    got = uniform_noise(torch.tensor(seeds), torch.tensor(steps), channels, width)
    for n, (seed, step) in enumerate(zip(seeds, steps, strict=True)):
        for channel in range(channels):
            stream = splitmix(splitmix(seed) + (step * channels + channel + 1) * gamma)
            for i in range(width):
                bits = splitmix(stream + (i + 1) * gamma) >> 12
                assert got[n, channel, i].item() == (bits + 0.5) / 2**52


def test_splitmix_matches_its_published_sequence() -> None:
    """First outputs of SplitMix64 seeded with 1234567 (the vector of the Rosetta Code task)."""
    gamma = 0x9E3779B97F4A7C15
    outputs = [splitmix(1234567 + (i + 1) * gamma) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    noise = uniform_noise(torch.arange(200), torch.zeros(200, dtype=torch.int64), 13, 64)
    assert noise.min() > 0 and noise.max() < 1
    counts = torch.histc(noise.float(), bins=64, min=0, max=1)
    expected = noise.numel() / 64
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 63 + 4 * math.sqrt(2 * 63)
    flat = noise.reshape(200, -1)
    correlation = torch.corrcoef(flat[:50])
    assert (correlation - torch.eye(50)).abs().max() < 0.2


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])
    draws = 40_000
    noise = gumbel_noise(torch.arange(draws), torch.zeros(draws, dtype=torch.int64), 1, 5)[:, 0]
    counts = torch.bincount((logits.double() + noise).argmax(dim=-1), minlength=5).double()
    expected = torch.softmax(logits.double(), 0) * draws
    assert float(((counts - expected) ** 2 / expected).sum()) < 4 + 4 * math.sqrt(8)


def naive_keep(scores: list[float], top_k: int, top_p: float) -> list[bool]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    kept = order[:top_k] if top_k else order
    weights = [math.exp(scores[i] - scores[order[0]]) for i in kept]
    total, before, chosen = sum(weights), 0.0, []
    for i, weight in zip(kept, weights, strict=True):
        if before / total <= top_p:
            chosen.append(i)
        before += weight
    return [i in chosen or i == order[0] for i in range(len(scores))]


@pytest.mark.parametrize("top_k", [0, 1, 3, 50])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.93, 1.0])
def test_filters_keep_what_a_plain_loop_keeps(top_k: int, top_p: float) -> None:
    scores = torch.randn(6, 40, generator=torch.Generator().manual_seed(top_k), dtype=torch.float64)
    scores[0, :5] = scores[0].max()  # ties
    got = keep_mask(scores, torch.full((6,), top_k), torch.full((6,), top_p, dtype=torch.float64))
    assert got.tolist() == [naive_keep(row.tolist(), top_k, top_p) for row in scores]


def params(seed: int, temperature: float, top_k: int = 50, top_p: float = 0.9) -> SamplingParams:
    return SamplingParams(seed, temperature, top_p, top_k, text_temperature=0.7)


def test_neighbours_and_places_do_not_change_a_draw() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 1024, generator=generator)
    stop = torch.randn(8, 2, generator=generator)
    steps = torch.tensor([3, 9, 0, 4, 4, 100, 2, 1])
    everyone = [params(seed, 0.0 if seed % 3 == 0 else 0.4 * seed, seed * 7, 1.0 - seed / 20) for seed in range(8)]

    def draw(order: list[int], sampled: torch.Tensor | bool = True) -> dict[int, tuple[int, bool]]:
        sampler = Sampler(8, 13, 1024, torch.device("cpu"))
        for slot in order:
            sampler.set_slot(slot, everyone[slot])
        sampler.begin(torch.tensor(order), steps[order], sampled)
        codes, stops = sampler.code(logits[order], 3), sampler.stop(stop[order])
        return {slot: (int(codes[row]), bool(stops[row])) for row, slot in enumerate(order)}

    alone = {slot: draw([slot])[slot] for slot in range(8)}
    assert draw(list(range(8))) == alone
    assert draw([5, 2, 7, 1]) == {slot: alone[slot] for slot in (5, 2, 7, 1)}
    # Naming the rows that may sample is a saving, not another result: slots 0, 3 and 6 are greedy.
    assert draw([6, 5, 0, 2], torch.tensor([1, 3])) == {slot: alone[slot] for slot in (6, 5, 0, 2)}
    assert draw([6, 0, 3], False) == {slot: alone[slot] for slot in (6, 0, 3)}


def test_seed_step_and_channel_all_matter() -> None:
    logits = torch.zeros(1, 1024)

    def draw(seed: int, step: int, codebook: int) -> int:
        sampler = Sampler(1, 13, 1024, torch.device("cpu"))
        sampler.set_slot(0, params(seed, 1.0, 0, 1.0))
        sampler.begin(torch.tensor([0]), torch.tensor([step]), True)
        return int(sampler.code(logits, codebook))

    assert draw(1, 1, 1) == draw(1, 1, 1)
    assert len({draw(1, 1, 1), draw(2, 1, 1), draw(1, 2, 1), draw(1, 1, 2)}) == 4


def test_greedy_is_the_arg_max() -> None:
    logits = torch.randn(3, 1024)
    sampler = Sampler(3, 13, 1024, torch.device("cpu"))
    sampler.set_slot(1, params(1, 1.0))
    sampler.begin(torch.arange(3), torch.zeros(3, dtype=torch.int64), True)
    assert sampler.code(logits, 0)[[0, 2]].tolist() == logits[[0, 2]].argmax(-1).tolist()
