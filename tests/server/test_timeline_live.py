"""The timeline of a request: on its last chunk, in the histograms, and not needed by those who send no stamps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from backends.timeline import STATIONS
from client import AsyncSpeechClient, AudioChunk
from client.bench.stages import STAGES
from tests.server.direct import DirectStream, prompt_rows
from tests.server.live import LiveServer
from tests.server.loop import run_async
from tests.server.texts import LONG, SHORT

OUTPUTS = ("audio", "sample_rate", "chunk_index", "final", "finish_reason", "error")
FIELDS: dict[str, Any] = {"max_frames": 20, "first_chunk_frames": 2, "chunk_frames": 5}
#: A request passes these one after another. The first audio may leave before or after the decoder's last chunk.
_DECODER = STATIONS[: STATIONS.index("last_chunk") + 1]
_VOCODER = ("first_chunk", "vocoder_first", "vocoder_last")


def speak(
    url: str, texts: list[str], outputs: tuple[str, ...] | None = None, **fields: Any
) -> list[tuple[list[AudioChunk], float]]:
    """The chunks of every text, all spoken together, and when each request went out."""

    async def work() -> list[tuple[list[AudioChunk], float]]:
        async with AsyncSpeechClient(url, outputs=outputs, chunk_timeout=60) as client:

            async def one(text: str) -> tuple[list[AudioChunk], float]:
                async with client.stream(text, **fields) as stream:
                    return [chunk async for chunk in stream], stream.started_at

            return await asyncio.gather(*(one(text) for text in texts))

    return run_async(work())


def check(timeline: Mapping[str, float]) -> None:
    assert tuple(timeline) == STATIONS
    assert timeline["received"] == 0.0
    for chain in (_DECODER, _VOCODER, ("last_chunk", "vocoder_last")):
        for before, after in pairwise(chain):
            assert timeline[before] <= timeline[after], (before, after, timeline)


@pytest.mark.parametrize("outputs", [None, (*OUTPUTS, "timeline")], ids=["all", "by name"])
def test_the_last_chunk_says_when_the_request_was_where(server: LiveServer, outputs: tuple[str, ...] | None) -> None:
    before = server.settled("voxstage_span_built_seconds_count")
    ((chunks, sent),) = speak(server.url, [LONG], outputs, **FIELDS)
    assert len(chunks) > 2 and [chunk.timeline for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    timeline = chunks[-1].timeline
    assert timeline is not None
    check(timeline)
    # The first chunk left long before the last: the stamps are those of two moments.
    assert timeline["last_chunk"] > timeline["first_chunk"] and timeline["vocoder_last"] > timeline["vocoder_first"]
    # What the server says fits into what the client saw, on the client's own clock.
    assert timeline["vocoder_first"] <= chunks[0].received_at - sent
    assert timeline["vocoder_last"] <= chunks[-1].received_at - sent
    # The stages that the bench prints lie end to end: their sum is the whole.
    parts = [timeline[end] - timeline[start] for _, start, end in STAGES]
    assert min(parts) >= 0 and sum(parts) == pytest.approx(timeline["vocoder_last"], abs=1e-5)
    print("\n" + ", ".join(f"{name} {1000 * at:.1f} ms" for name, at in timeline.items()))
    assert server.settled("voxstage_span_built_seconds_count") == before + 1


def test_who_does_not_ask_gets_none(server: LiveServer) -> None:
    ((chunks, _),) = speak(server.url, [SHORT], OUTPUTS, **FIELDS)
    assert [chunk.timeline for chunk in chunks] == [None] * len(chunks)


def test_the_shortest_request_passes_every_station(server: LiveServer) -> None:
    ((chunks, _),) = speak(server.url, ["Hi."], max_frames=1)
    assert len(chunks) == 1 and chunks[0].timeline is not None
    check(chunks[0].timeline)


def test_a_dozen_together_and_the_histograms_count_one_each(server: LiveServer) -> None:
    names = [f"voxstage_span_{name}_seconds" for name in STATIONS[1:]]
    server.settled(f"{names[0]}_count")
    before = server.scrape()
    spoken = speak(server.url, [SHORT] * 12, **FIELDS)
    for chunks, _ in spoken:
        assert chunks[-1].timeline is not None
        check(chunks[-1].timeline)
    server.settled(f"{names[0]}_count")
    after = server.scrape()
    assert {name: after[f"{name}_count"] - before[f"{name}_count"] for name in names} == dict.fromkeys(names, 12.0)
    # No span is negative, so no sum goes down; the spans of the decoder sum up to what the timelines say.
    sums = {name: after[f"{name}_sum"] - before[f"{name}_sum"] for name in names}
    assert min(sums.values()) >= 0, sums
    decoder = sum(sums[f"voxstage_span_{name}_seconds"] for name in _DECODER[1:])
    lines = [chunks[-1].timeline for chunks, _ in spoken]
    assert decoder == pytest.approx(sum(line["last_chunk"] for line in lines if line), abs=0.001)


def test_a_direct_call_without_stamps_begins_in_the_queue(server: LiveServer) -> None:
    """It has no prompt stage behind it and no vocoder before it: its timeline is the decoder's own, not relative."""
    limits = {"max_frames": np.array([12], np.int32), "chunk_frames": np.array([4], np.int32)}
    before = server.settled("voxstage_span_built_seconds_count")
    with DirectStream(server.url, "tts_decoder", rows=prompt_rows(SHORT), **limits) as stream:
        answers = stream.rest()
    assert sum(len(answer["codes"]) for answer in answers) == 12
    assert [bytes(answer["timeline"][0]) for answer in answers[:-1]] == [b""] * (len(answers) - 1)
    stamps = json.loads(answers[-1]["timeline"][0])
    assert list(stamps) == list(_DECODER[2:])
    assert list(stamps.values()) == sorted(stamps.values())
    assert server.settled("voxstage_span_built_seconds_count") == before, "the vocoder never saw it"


@pytest.mark.parametrize("stamps", [np.zeros(0), np.zeros(3)], ids=["none", "three"])
def test_stamps_of_another_shape_are_left_alone(server: LiveServer, stamps: np.ndarray) -> None:
    inputs = {"rows": prompt_rows("Hi."), "max_frames": np.array([2], np.int32), "stamps": stamps}
    with DirectStream(server.url, "tts_decoder", **inputs) as stream:
        answers = stream.rest()
    assert "received" not in json.loads(answers[-1]["timeline"][0])
