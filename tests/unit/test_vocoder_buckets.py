"""Which numbers of streams a step may compute, for libraries that round in every way; and counters with labels."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from backends.metrics import CounterFamily
from backends.vocoder.buckets import stream_buckets
from backends.vocoder.metrics import VocoderMetrics

SIZES: list[tuple[int, int]] = []


def rounding(differs: Callable[[int, int], bool], place: bool = False) -> Callable[[Tensor], Tensor]:
    """A decode that sums codes, in another way at the (B, T) that ``differs`` names, or by place in the batch."""

    def decode(codes: Tensor) -> Tensor:
        streams, frames, _ = codes.shape
        SIZES.append((streams, frames))
        audio = codes.float().sum(dim=2)
        if differs(streams, frames):
            audio = audio * (1 + 1e-6)
        return audio + torch.arange(streams)[:, None] * 1e-3 if place else audio

    return decode


def codes(frames: int) -> Tensor:
    return torch.randint(1, 1024, (frames, 12), generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize(
    ("differs", "kept"),
    [
        (lambda streams, frames: False, (1, 2, 4, 8, 16)),
        (lambda streams, frames: streams == 1, (2, 4, 8, 16)),
        (lambda streams, frames: streams < 16 and streams * frames == 12, (1, 8, 16)),
        (lambda streams, frames: streams < 16 and frames == 7, (16,)),
    ],
    ids=["none", "one stream", "two shapes", "one length"],
)
def test_a_bucket_is_kept_when_every_length_agrees(differs: Callable[[int, int], bool], kept: tuple[int, ...]) -> None:
    assert stream_buckets(rounding(differs), 16, 7, codes, True) == kept
    SIZES.clear()
    assert stream_buckets(rounding(differs), 16, 7, codes, False) == (1, 2, 4, 8, 16)
    assert set(SIZES) == {(b, t) for b in (1, 2, 4, 8, 16) for t in range(1, 8)}, "not every shape was warmed up"


def test_a_largest_bucket_that_is_no_power_of_two() -> None:
    assert stream_buckets(rounding(lambda streams, frames: False), 12, 3, codes, True) == (1, 2, 4, 8, 12)
    assert stream_buckets(rounding(lambda streams, frames: False), 1, 3, codes, True) == (1,)


def test_a_place_that_matters_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stream_buckets(rounding(lambda streams, frames: False, place=True), 4, 2, codes, True)
    assert "depends on its place among 4" in caplog.text


def test_labelled_counters() -> None:
    metrics = VocoderMetrics()
    assert metrics.step_shapes in list(metrics)
    metrics.step_shapes.inc(16, 5, "graph")
    metrics.step_shapes.inc(16, 5, "graph", amount=2)
    assert metrics.step_shapes.values == {("16", "5", "graph"): 3.0}
    with pytest.raises(ValueError, match="has the labels"):
        CounterFamily("name", "what it counts", ("a", "b")).inc(1)
