"""The promise through Triton: no switch of the decoder and no state of its prefix cache changes a sample."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from client import AsyncSpeechClient, SpeechClient
from tests.server.conftest import StartServer
from tests.server.live import LiveServer
from tests.server.loop import run_async

HITS, HIT_ROWS = "voxstage_decoder_prefix_hits", "voxstage_decoder_prefix_hit_rows"
RETRACTED, OVERRUNS = "voxstage_decoder_retracted", "voxstage_decoder_overruns"
#: Above two pages of the KV cache, so that the cache has something to find.
TEXTS = (
    "The old bridge was closed for repairs in the middle of May.",
    "The old bridge was closed for repairs, and nobody minded at all.",
    "She looked out of the window and counted the ships in the bay.",
    "Hi.",
)


def requests() -> list[tuple[str, dict[str, Any]]]:
    """16 requests: every text greedy once and with three seeds, 11 to 15 frames; "Hi." ends by itself before that."""
    made = []
    for number in range(16):
        sampling = {"temperature": 0.8, "top_k": 50} if number // 4 else {}
        made.append((TEXTS[number % 4], {"seed": number, "max_frames": 11 + number % 5, **sampling}))
    return made


def speak(url: str) -> list[tuple[bytes, str]]:
    """Samples and finish reason of the 16 requests, all sent together."""

    async def work() -> list[tuple[bytes, str]]:
        async with AsyncSpeechClient(url, chunk_timeout=60) as client:
            spoken = await asyncio.gather(*(client.synthesize(text, **fields) for text, fields in requests()))
            return [(speech.audio.tobytes(), speech.finish_reason) for speech in spoken]

    return run_async(work())


@pytest.fixture(scope="module")
def expected(server: LiveServer) -> list[tuple[bytes, str]]:
    """What the default server says."""
    spoken = speak(server.url)
    assert len({audio for audio, _ in spoken}) > 8, "the requests are too much alike to tell"
    assert {reason for _, reason in spoken} == {"length", "stop"}
    return spoken


def same(spoken: list[tuple[bytes, str]], expected: list[tuple[bytes, str]]) -> list[int]:
    """The requests whose samples, or ends, differ."""
    return [number for number, pair in enumerate(zip(spoken, expected, strict=True)) if pair[0] != pair[1]]


def test_the_same_text_again_is_a_hit_and_sounds_the_same(server: LiveServer, client: SpeechClient) -> None:
    text = "A sentence that no other test has ever said to this server."
    first = client.synthesize(text, max_frames=12)
    hits, rows = server.settled(HITS), server.metric(HIT_ROWS)
    again = client.synthesize(text, max_frames=12)
    assert np.array_equal(first.audio, again.audio)
    assert server.settled(HITS) == hits + 1
    assert server.metric(HIT_ROWS) - rows >= 32
    # Another seed shares the prompt, not the audio.
    sampled = [client.synthesize(text, max_frames=12, temperature=0.8, seed=seed).audio for seed in (1, 2, 1)]
    assert np.array_equal(sampled[0], sampled[2]) and not np.array_equal(sampled[0], sampled[1])
    assert server.settled(HITS) == hits + 4


def test_cold_and_warm_the_default_server_says_the_same(server: LiveServer, expected: list[tuple[bytes, str]]) -> None:
    hits = server.settled(HITS)
    assert same(speak(server.url), expected) == []
    assert server.settled(HITS) - hits >= 12
    assert server.metric(RETRACTED) == server.metric("voxstage_decoder_prefix_clashes") == 0


@pytest.mark.parametrize(
    ("switches", "grows"),
    [
        ({"prefix_cache": "false"}, None),
        ({"lookahead_min_batch": "1"}, OVERRUNS),
        ({"deterministic": "false"}, HITS),
        # A slot is 128 positions long, and the pool has room for four requests or so: the others take turns.
        ({"kv_pages": "12", "max_positions": "128"}, RETRACTED),
    ],
    ids=["prefix_cache off", "lookahead", "exact buckets", "few pages"],
)
def test_a_switch_changes_no_sample(
    start_server: StartServer, expected: list[tuple[bytes, str]], switches: dict[str, str], grows: str | None
) -> None:
    settings = [f"tts_decoder.{key}={value}" for key, value in {"check_integrity": "true", **switches}.items()]
    if "max_positions" in switches:  # the prompt stage may not promise more
        settings.append(f"tts_prompt.max_positions={switches['max_positions']}")
    live = start_server(*(word for setting in settings for word in ("--set", setting)))
    assert same(speak(live.url), expected) == []
    live.wait_idle()
    values = live.scrape()
    print(f"\n{ {name: values[name] for name in (HITS, OVERRUNS, RETRACTED)} }")
    if grows is None:
        assert values[HITS] == values["voxstage_decoder_cached_pages"] == 0
        assert values["voxstage_decoder_pages"] == 0
    else:
        assert values[grows] > 0
    assert live.settled("voxstage_decoder_integrity_failures") == 0
    live.end()
