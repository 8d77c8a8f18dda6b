"""The timeline: relative stamps, and the span of each station."""

from __future__ import annotations

import pytest

from backends.timeline import STATIONS, Timeline


def stamped(**stamps: float) -> Timeline:
    timeline = Timeline()
    for name, at in stamps.items():
        timeline.stamp(name, at)
    return timeline


def test_a_long_text_has_no_negative_span() -> None:
    """Its first audio leaves while the decoder is still at work."""
    timeline = Timeline()
    for at, name in enumerate(STATIONS):
        timeline.stamp(name, 100.0 + at)
    timeline.stamps.update(last_chunk=120.0, vocoder_first=106.5, vocoder_last=121.0)
    spans = timeline.spans()
    assert list(spans) == list(STATIONS[1:])
    assert (spans["vocoder_first"], spans["last_chunk"], spans["vocoder_last"]) == (1.5, 15.0, 1.0)
    assert min(spans.values()) >= 0


def test_without_the_first_stations_the_others_still_count() -> None:
    timeline = stamped(queued=5.0, scheduled=6.0, first_chunk=9.0, last_chunk=9.0)
    assert timeline.spans() == {"scheduled": 1.0, "first_chunk": 3.0, "last_chunk": 0.0}
    assert timeline.relative() == {"queued": 0.0, "scheduled": 1.0, "first_chunk": 4.0, "last_chunk": 4.0}
    assert Timeline().spans() == Timeline().relative() == {}


def test_the_first_stamp_counts_and_json_keeps_it() -> None:
    timeline = stamped(received=1.0)
    timeline.stamp("received", 2.0)
    timeline.stamp("built", 1.25)
    assert Timeline.from_json(timeline.to_json()).relative() == {"received": 0.0, "built": 0.25}
    assert Timeline.from_json("").stamps == {}


@pytest.mark.parametrize("name", STATIONS)
def test_a_lone_stamp_has_no_span(name: str) -> None:
    assert stamped(**{name: 3.0}).spans() == {}
