"""Playback maths on hand-made arrivals. 1000 samples a second, so that lengths read as milliseconds."""

from __future__ import annotations

import math

import pytest

from client.playback import measure


def test_a_stream_that_keeps_ahead() -> None:
    p = measure(10.0, [10.2, 10.3, 10.5], [200, 400, 400], 1000)
    assert p.chunks == 3
    assert p.first_chunk_s == pytest.approx(0.2)
    assert p.gaps_s == pytest.approx((0.1, 0.2))
    assert p.worst_gap_s == pytest.approx(0.2)
    assert p.audio_s == pytest.approx(1.0)
    assert p.total_s == pytest.approx(0.5)
    assert p.real_time_factor == pytest.approx(0.5)
    assert p.underrun_s == 0.0


def test_underrun_is_the_sum_of_the_stalls() -> None:
    # Plays 0.0-0.1, waits for 0.3 (stall 0.2), plays to 0.4, then waits for 0.45 (stall 0.05), plays to 0.55.
    p = measure(0.0, [0.0, 0.3, 0.45], [100, 100, 100], 1000)
    assert p.underrun_s == pytest.approx(0.25)


def test_a_stall_that_a_later_chunk_does_not_make_worse() -> None:
    assert measure(0.0, [0.0, 0.3, 0.35, 0.36], [100, 100, 100, 100], 1000).underrun_s == pytest.approx(0.2)


def test_simulated_player_agrees_with_the_formula() -> None:
    arrivals, lengths = [0.1, 0.15, 0.5, 0.51, 1.4, 1.41], [80, 160, 80, 320, 80, 80]
    clock, stalls = arrivals[0], 0.0
    for at, length in zip(arrivals, lengths, strict=True):
        stalls += max(0.0, at - clock)
        clock = max(clock, at) + length / 1000
    assert measure(0.0, arrivals, lengths, 1000).underrun_s == pytest.approx(stalls)


def test_empty_last_chunk_is_neither_gap_nor_stall_but_ends_the_clock() -> None:
    p = measure(0.0, [0.1, 0.2, 5.0], [100, 100, 0], 1000)
    assert (p.chunks, p.gaps_s, p.underrun_s) == (3, pytest.approx((0.1,)), 0.0)
    assert p.total_s == pytest.approx(5.0)


def test_empty_first_chunk_is_not_the_first_heard() -> None:
    assert measure(0.0, [0.1, 0.4], [0, 100], 1000).first_chunk_s == pytest.approx(0.4)


def test_no_audio_and_no_chunks() -> None:
    silent = measure(0.0, [0.1], [0], 1000)
    assert silent.first_chunk_s == pytest.approx(0.1)
    assert math.isinf(silent.real_time_factor)
    none = measure(0.0, [], [], 0)
    assert (none.chunks, none.worst_gap_s, none.underrun_s) == (0, 0.0, 0.0)
    assert math.isnan(none.first_chunk_s)


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="2 arrivals and 1 lengths"):
        measure(0.0, [0.1, 0.2], [1], 1000)
    with pytest.raises(ValueError, match="sample_rate is 0"):
        measure(0.0, [0.1], [1], 0)
