"""Mimi on a GPU: load changes no bit at a fixed bucket; chunks differ from the whole by rounding that does not grow."""

from __future__ import annotations

import random

import pytest
import torch

from backends.models.mimi import Mimi
from backends.vocoder.graphs import GraphOptions
from backends.vocoder.streaming import StreamingVocoder
from tests.mimi_cases import CONFIGS, mimi_codec, mimi_model

pytestmark = pytest.mark.gpu
FRAMES, BUCKET = 1000, 16
# Of full scale. The output has a standard deviation of 1, so its peaks pass full scale: the bound is on the safe side.
BOUND = 1e-5


@pytest.fixture(scope="module")
def codec() -> Mimi:
    return mimi_codec(mimi_model(**CONFIGS["small"]), "cuda")


def random_codes(codec: Mimi, frames: int, seed: int) -> torch.Tensor:
    return torch.randint(codec.entries, (frames, codec.codebooks), generator=torch.Generator().manual_seed(seed))


def cuts(rng: random.Random, longest: int) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < FRAMES:
        sizes.append(min(rng.randint(1, longest), FRAMES - sum(sizes)))
    return sizes


def test_chunks_equal_the_whole_within_the_bound_from_the_first_frame_to_the_last(codec: Mimi) -> None:
    vocoder = StreamingVocoder(codec, step_streams=BUCKET, slots=1)
    codes = random_codes(codec, FRAMES, 0)
    whole = vocoder.decode_whole(codes)
    for sizes in (cuts(random.Random(0), 50), cuts(random.Random(1), 5)):
        slot = vocoder.open()
        made = torch.cat([vocoder.decode([slot], part[None])[0] for part in codes.split(sizes)])
        vocoder.close(slot)
        error = (made - whole).view(FRAMES, codec.hop)
        first, last = (float(part.square().mean().sqrt()) for part in (error[:100], error[-100:]))
        print(
            f"largest difference {float(error.abs().max()):.1e}; rms of frames 0-99 {first:.1e}, of 900-999 {last:.1e}"
        )
        assert float(error.abs().max()) <= BOUND
        assert last <= 1.5 * first + 1e-8


def test_alone_equals_among_fifteen_others_that_join_and_leave(codec: Mimi) -> None:
    rng = random.Random(2)
    vocoder = StreamingVocoder(codec, step_streams=BUCKET, slots=BUCKET)
    codes, sizes = random_codes(codec, FRAMES, 1), cuts(rng, 25)
    slot = vocoder.open()
    alone = torch.cat([vocoder.decode([slot], part[None])[0] for part in codes.split(sizes)])
    vocoder.close(slot)
    slot, others = vocoder.open(), list[int]()
    made = []
    for part in codes.split(sizes):
        while others and rng.random() < 0.5:
            vocoder.close(others.pop(rng.randrange(len(others))))
        while len(others) < BUCKET - 1 and rng.random() < 0.8:
            others.append(vocoder.open())
        company = [*others, slot]
        rng.shuffle(company)
        batch = torch.stack([part if one == slot else random_codes(codec, len(part), one) for one in company])
        made.append(vocoder.decode(company, batch)[company.index(slot)])
    assert torch.equal(torch.cat(made), alone)


def test_graphs_equal_eager_steps(codec: Mimi) -> None:
    """Three steps a shape, and state that goes on from a graph's step to an eager one."""
    graphed, eager = (StreamingVocoder(codec, step_streams=4, slots=4, max_step_frames=10) for _ in range(2))
    graphed.prepare(GraphOptions(max_frames=6), deterministic=False)
    assert graphed.graphs == 3 * 6 and graphed.metrics.graph_failures.value == 0
    for frames in (1, 2, 3, 5, 6):
        slots = [(graphed.open(), eager.open()) for _ in range(4)]
        codes = torch.stack([random_codes(codec, 3 * frames + 7, frames + i) for i in range(4)])
        for part in codes.split([frames, frames, frames, 7], dim=1):
            mine, other = (
                vocoder.decode([pair[side] for pair in slots], part) for side, vocoder in enumerate((graphed, eager))
            )
            assert torch.equal(mine, other), frames
        for one, two in slots:
            graphed.close(one)
            eager.close(two)
    runs = graphed.metrics.step_shapes.values
    assert {run for (_, frames, run) in runs if frames == "7"} == {"eager"}
    assert {run for (_, frames, run) in runs if frames != "7"} == {"graph"}
