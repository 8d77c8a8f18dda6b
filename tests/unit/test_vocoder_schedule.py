"""Which chunks make the next step."""

from __future__ import annotations

import pytest

from backends.vocoder.schedule import Chunk, StepScheduler


def scheduler(step_streams: int = 4) -> StepScheduler[str]:
    return StepScheduler(step_streams)


def take(s: StepScheduler[str]) -> list[int]:
    return [chunk.stream for chunk in s.next_step()]


def test_empty_only_when_nothing_waits() -> None:
    s = scheduler()
    assert s.next_step() == []
    s.add(Chunk(1, 4, "a"))
    assert take(s) == [1] and s.next_step() == [] and len(s) == 0


def test_first_chunks_go_first_in_order_of_arrival() -> None:
    s = scheduler(1)
    s.add(Chunk(1, 4, ""))
    assert take(s) == [1]
    s.sent(1, 0.32, now=0.0)
    s.add(Chunk(1, 4, ""))
    s.add(Chunk(3, 4, ""))
    s.add(Chunk(2, 4, ""))
    assert [take(s) for _ in range(3)] == [[3], [2], [1]]


def test_then_the_stream_closest_to_running_dry() -> None:
    s = scheduler(1)
    for stream, frames, now in ((1, 20, 0.0), (2, 4, 0.1), (3, 10, 0.2)):
        s.add(Chunk(stream, frames, ""))
        take(s)
        s.sent(stream, 0.08 * frames, now)
        s.add(Chunk(stream, 8, ""))
    assert [take(s) for _ in range(3)] == [[2], [3], [1]]


def test_peers_share_a_step_only_at_the_same_length() -> None:
    s = scheduler(3)
    for stream, frames in ((1, 4), (2, 8), (3, 4), (4, 4), (5, 4), (6, 8)):
        s.add(Chunk(stream, frames, ""))
    assert take(s) == [1, 3, 4]
    assert take(s) == [2, 6]
    assert take(s) == [5]


def test_chunks_of_a_stream_keep_their_order_and_never_share_a_step() -> None:
    s = scheduler()
    for payload in "abc":
        s.add(Chunk(1, 4, payload))
    assert [[c.payload for c in s.next_step()] for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_margin_and_underrun() -> None:
    s = scheduler()
    s.add(Chunk(1, 10, ""))
    take(s)
    assert s.sent(1, 0.8, now=5.0) is None
    assert s.sent(1, 0.8, now=5.5) == pytest.approx(0.3)
    assert s.sent(1, 0.8, now=7.0) == pytest.approx(-0.4)  # ran dry at 6.6; playback goes on from 7.0
    assert s.sent(1, 0, now=7.1) is None
    assert s.sent(1, 0.8, now=7.3) == pytest.approx(0.5)


def test_remove_forgets_a_stream() -> None:
    s = scheduler()
    s.add(Chunk(1, 4, "a"))
    s.add(Chunk(2, 4, "b"))
    assert [c.payload for c in s.remove(1)] == ["a"] and s.remove(1) == []
    assert s.sent(1, 0.32, now=0.0) is None and s.streams == 1
    assert take(s) == [2]


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="step_streams"):
        StepScheduler(0)
    with pytest.raises(ValueError, match="frames"):
        scheduler().add(Chunk(1, -1, ""))


def ahead(*streams: int, hold_seconds: float = 0.01, step_streams: int = 3) -> StepScheduler[str]:
    """A scheduler that holds, with streams that have a second to play at time 10."""
    s: StepScheduler[str] = StepScheduler(step_streams, hold_seconds)
    for stream in streams:
        s.add(Chunk(stream, 4, ""), 10.0)
    while s.next_step():
        pass
    for stream in streams:
        s.sent(stream, 1.0, 10.0)
    return s


def test_a_step_waits_for_company_and_no_longer_than_allowed() -> None:
    s = ahead(1, 2)
    assert s.delay(10.0) is None
    s.add(Chunk(1, 4, ""), 10.0)
    assert s.delay(10.004) == pytest.approx(0.006)
    assert s.next_step(10.004) == [] and len(s) == 1
    assert s.delay(10.011) == 0.0
    assert [chunk.stream for chunk in s.next_step(10.011)] == [1]
    assert s.held_seconds == pytest.approx(0.007), "from the first look to the last"


def test_a_step_runs_when_everybody_has_come() -> None:
    s = ahead(1, 2)
    s.add(Chunk(1, 4, ""), 10.0)
    assert s.next_step(10.001) == []
    s.add(Chunk(2, 4, ""), 10.002)
    assert s.delay(10.002) == 0.0
    assert [chunk.stream for chunk in s.next_step(10.002)] == [1, 2]
    s.add(Chunk(1, 4, ""), 10.1)
    s.remove(2)
    assert s.delay(10.1) == 0.0, "nobody else is there"


def test_a_full_step_never_waits() -> None:
    s = ahead(1, 2, 3, 4, step_streams=2)
    s.add(Chunk(1, 4, ""), 10.0)
    s.add(Chunk(2, 4, ""), 10.0)
    assert s.delay(10.0) == 0.0
    assert len(s.next_step(10.0)) == 2 and s.held_seconds == 0.0


def test_a_first_chunk_never_waits_and_takes_its_company_along() -> None:
    s = ahead(1, 2)
    s.add(Chunk(1, 4, ""), 10.0)
    s.add(Chunk(9, 4, ""), 10.0)
    assert s.delay(10.0) == 0.0
    assert [chunk.stream for chunk in s.next_step(10.0)] == [9, 1]


def test_a_stream_about_to_run_dry_never_waits() -> None:
    s = ahead(1, 2)
    s.add(Chunk(1, 4, ""), 10.8)  # 0.2 s left to play: less than the reserve
    assert s.delay(10.8) == 0.0
    s = ahead(1, 2)
    s.add(Chunk(1, 4, ""), 10.745)  # 5 ms above the reserve, so not the 10 ms that a step may wait
    assert s.delay(10.745) == pytest.approx(0.005)


def test_another_step_runs_while_one_is_held() -> None:
    s = ahead(1, 2, 3, step_streams=2)
    s.add(Chunk(1, 4, ""), 10.0)
    s.add(Chunk(2, 8, ""), 10.0)
    s.add(Chunk(3, 8, ""), 10.0)
    assert s.delay(10.0) == 0.0
    assert [chunk.stream for chunk in s.next_step(10.0)] == [2, 3]
    assert s.next_step(10.0) == [] and len(s) == 1
    assert take(s) == [1], "without a time nothing is held"


def test_without_hold_seconds_nothing_waits() -> None:
    s = ahead(1, 2, hold_seconds=0.0)
    s.add(Chunk(1, 4, ""), 10.0)
    assert s.delay(10.0) == 0.0
    with pytest.raises(ValueError, match="hold_seconds"):
        StepScheduler(1, -0.1)
