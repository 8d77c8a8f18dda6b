"""The chunk schedule: playback survives the promised rate, and only the request decides."""

from __future__ import annotations

import pytest

from backends.decoder.chunks import ChunkSchedule


def sizes(schedule: ChunkSchedule, frames: int) -> list[int]:
    made: list[int] = []
    while sum(made) < frames:
        size = min(schedule.next_size(), frames - sum(made))
        schedule.take(size)
        made.append(size)
    return made


def margins(chunks: list[int], rate: float) -> list[float]:
    """Seconds of audio left, in frames, when each later chunk arrives; frames take ``rate`` of their own length."""
    arrived, played, left = 0.0, 0, []
    for index, size in enumerate(chunks):
        arrived += size * rate
        if index == 0:
            start = arrived
        else:
            left.append(start + played - arrived)
        played += size
    return left


@pytest.mark.parametrize("first", [1, 2, 4, 10, 25])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.95, 1.0])
def test_playback_never_runs_dry_at_the_promised_rate(first: int, rate: float) -> None:
    chunks = sizes(ChunkSchedule(first, 25, rate), 750)
    assert min(margins(chunks, rate)) >= -1e-9


def test_the_default_starts_small_and_grows() -> None:
    chunks = sizes(ChunkSchedule(4, 25), 250)
    assert chunks[0] == 4
    assert all(earlier <= later for earlier, later in zip(chunks[:-2], chunks[1:-1], strict=True))
    assert max(chunks) == 25
    assert min(margins(chunks, 0.8)) >= 0


def test_at_real_time_exactly_chunks_stay_at_the_first_size() -> None:
    assert set(sizes(ChunkSchedule(4, 25, 1.0), 100)) == {4}


def test_a_first_chunk_above_the_largest_is_cut_to_it() -> None:
    assert ChunkSchedule(40, 25).next_size() == 25
