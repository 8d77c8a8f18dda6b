"""Percentiles, schedules, records, levels and stages of the bench."""

from __future__ import annotations

import math

import numpy as np
import pytest

from client.bench.distribution import distribution, percentile
from client.bench.level import Tally
from client.bench.record import OK
from client.bench.schedule import arrival_times
from client.bench.speech import SpeechLevel, SpeechRecord, summarise, underrun
from client.bench.stages import STAGES, breakdown

RATE = 24000


def record(index: int = 0, due: float = 0.0, sent: float | None = None, **fields: object) -> SpeechRecord:
    """Two chunks of 0.5 s, 0.1 s and 0.4 s after ``due``."""
    values: dict[str, object] = {
        "ended": due + 0.4,
        "kind": OK,
        "finish_reason": "stop",
        "sample_rate": RATE,
        "chunks": ((due + 0.1, RATE // 2), (due + 0.4, RATE // 2)),
    }
    return SpeechRecord(index=index, due=due, sent=due if sent is None else sent, **{**values, **fields})  # type: ignore[arg-type]


def failure(kind: str, due: float = 0.0, after: float = 0.01) -> SpeechRecord:
    return record(due=due, kind=kind, ended=due + after, chunks=(), sample_rate=0, finish_reason="")


def test_percentiles_are_those_of_numpy() -> None:
    samples = list(np.random.default_rng(0).exponential(size=257))
    for q in (0.0, 0.5, 0.95, 0.99, 1.0):
        assert percentile(sorted(samples), q) == pytest.approx(np.percentile(samples, 100 * q))
    assert percentile([3.0], 0.99) == 3.0


@pytest.mark.parametrize(("samples", "q"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1)])
def test_percentile_refuses(samples: list[float], q: float) -> None:
    with pytest.raises(ValueError, match=r"sample|between 0 and 1"):
        percentile(samples, q)


@pytest.mark.parametrize("n", [0, 1, 2, 19, 20, 99, 100])
def test_tails_need_samples(n: int) -> None:
    found = distribution(float(i) for i in range(n))
    assert found.n == n
    given = [found.p50 is not None, found.p95 is not None, found.p99 is not None]
    assert given == [n >= 2, n >= 20, n >= 100]
    if n:
        assert (found.least, found.most, found.mean) == (0.0, n - 1, pytest.approx((n - 1) / 2))


def test_constant_arrivals() -> None:
    assert arrival_times(2.0, 2.0, None, "constant") == [0.0, 0.5, 1.0, 1.5]
    assert arrival_times(2.0, None, 3, "constant") == [0.0, 0.5, 1.0]
    assert arrival_times(2.0, 1.0, 100, "constant") == [0.0, 0.5]


def test_poisson_arrivals() -> None:
    times = arrival_times(5.0, 400.0, None, "poisson", seed=3)
    assert times == arrival_times(5.0, 400.0, None, "poisson", seed=3)
    assert times != arrival_times(5.0, 400.0, None, "poisson", seed=4)
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 400
    gaps = np.diff([0.0, *times])
    # Mean and deviation of an exponential are both 1/rate; 2,000 gaps are within 10 % by more than four sigma.
    assert np.mean(gaps) == pytest.approx(0.2, rel=0.1)
    assert np.std(gaps) == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(
    "arguments", [(0.0, 1.0, None), (-1.0, 1.0, None), (math.nan, 1.0, None), (1.0, None, None), (1.0, 1.0, None, "x")]
)
def test_schedule_refuses(arguments: tuple) -> None:
    with pytest.raises(ValueError, match=r"rate|seconds|arrivals"):
        arrival_times(*arguments)


def test_latency_counts_from_the_schedule() -> None:
    late = record(due=1.0, sent=1.3, chunks=((1.5, RATE),), ended=1.5)
    assert late.playback.first_chunk_s == pytest.approx(0.5)
    assert late.playback.real_time_factor == pytest.approx(0.5)


def test_underrun_shares() -> None:
    found = underrun([0.0, 0.01, 0.06, 0.15, 0.3])
    assert found.shares == {0.0: 0.8, 0.05: 0.6, 0.1: 0.4, 0.2: 0.2}
    assert (found.n, found.worst) == (5, 0.3)
    none = underrun([])
    assert (none.n, none.worst, set(none.shares.values())) == (0, None, {None})


def test_a_level_adds_up() -> None:
    records = [
        record(0),
        record(1, due=1.0),
        record(2, due=2.8),  # ends after the window; its first chunk is within
        failure("UNAVAILABLE", 1.0, 0.004),
        failure("UNAVAILABLE", 2.0, 0.006),
        failure("BROKEN", 0.0, 3.0),
        failure("TIMEOUT", 0.0, 3.0),
        failure("INTERNAL", 0.0, 1.0),
    ]
    level = summarise(Tally("2/s", started=9, skipped=4, offered=2.0, window=3.0), records)
    assert (level.finished, level.lost, level.skipped, level.unfinished) == (3, 2, 4, 1)
    assert {kind: found.n for kind, found in level.errors.items()} == {
        "BROKEN": 1, "INTERNAL": 1, "TIMEOUT": 1, "UNAVAILABLE": 2,
    }  # fmt: skip
    assert level.errors["UNAVAILABLE"].most == pytest.approx(0.006)
    assert level.finish_reasons == {"stop": 3}
    assert level.requests_per_s == pytest.approx(2 / 3)
    assert level.audio_per_s == pytest.approx(2.5 / 3)
    assert level.in_flight == pytest.approx((0.4 + 0.4 + 0.2 + 0.004 + 0.006 + 3 + 3 + 1) / 3)
    assert (level.first_chunk.n, level.gap.n, level.real_time_factor.n) == (3, 3, 3)
    assert level.first_chunk.mean == pytest.approx(0.1)
    assert level.gap.mean == pytest.approx(0.3)
    assert level.underrun.shares[0.0] == 0


def test_a_level_without_a_window_ends_with_its_last_request() -> None:
    level = summarise(Tally("c=1", started=2), [record(0), record(1, due=0.6)])
    assert level.window == pytest.approx(1.0)
    assert level.requests_per_s == pytest.approx(2.0)
    assert level.send_delay.n == 0


def test_an_empty_level() -> None:
    level = summarise(Tally("c=1", started=0), [])
    assert (level.window, level.requests_per_s, level.first_chunk.n, level.stages) == (0.0, 0.0, 0, None)


def test_a_stream_without_audio_is_finished_but_has_no_latency() -> None:
    silent = record(chunks=((0.1, 0),), ended=0.1)
    level = summarise(Tally("c=1", started=1), [silent])
    assert (level.finished, level.first_chunk.n, level.underrun.n) == (1, 0, 0)
    assert silent.as_dict()["real_time_factor"] is None


EVENTS = ("built", "queued", "scheduled", "first_step", "first_chunk", "last_chunk", "vocoder_last")


def timeline(step: float) -> dict[str, float]:
    return {**{name: step * (i + 1) for i, name in enumerate(EVENTS)}, "vocoder_first": 5.5 * step}


def test_stages_and_rest_add_up_to_the_total() -> None:
    found = breakdown([record(timeline=timeline(0.01)), record(timeline=timeline(0.03)), record()])
    assert found is not None
    assert found.n == 2
    assert list(found.stages) == [name for name, _, _ in STAGES]
    assert all(value == pytest.approx(0.02) for value in found.stages.values())
    assert found.total == pytest.approx(0.4)
    assert found.rest == pytest.approx(0.4 - 7 * 0.02)
    assert found.aside == {"1st voc.": pytest.approx(0.01)}


def test_stages_with_missing_events() -> None:
    found = breakdown([record(timeline={"built": 0.1, "queued": 0.15})])
    assert found is not None
    known = {name: value for name, value in found.stages.items() if value is not None}
    assert known == {"build": pytest.approx(0.1), "to queue": pytest.approx(0.05)}
    assert found.rest == pytest.approx(0.25)
    assert found.aside == {"1st voc.": None}
    assert breakdown([record(), failure("BROKEN")]) is None


def big_level() -> SpeechLevel:
    """A level with large numbers everywhere, for the width of tables."""
    records = [record(i, due=i / 100, timeline=timeline(1.2345)) for i in range(12000)]
    records += [failure("UNAVAILABLE", i / 100, 0.04) for i in range(200)]
    return summarise(Tally("12.5/s", started=12200, offered=12.5, client_cpu=0.9, window=120.0), records)
