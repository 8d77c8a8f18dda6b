"""The promise: the same request with the same seed gives the same samples, whatever else the server does."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch

from client import AsyncSpeechClient, Speech, SpeechClient
from client.chunk import as_int16
from tests.server.live import LiveServer
from tests.server.texts import HOP, LONG, SHORT

TEXTS = ("Good morning.", "How are you?", "It is nine thirty.", "Thank you very much.")
REQUESTS = 64


def requests() -> list[tuple[str, dict[str, Any]]]:
    """64 requests that differ in text, seed, length; every other one samples."""
    made = []
    for number in range(REQUESTS):
        sampling = {"temperature": 0.8, "top_k": 50} if number % 2 else {}
        made.append((TEXTS[number // 2 % len(TEXTS)], {"seed": number, "max_frames": 12 + number % 5, **sampling}))
    return made


def all_at_once(url: str, wanted: list[tuple[str, dict[str, Any]]]) -> list[Speech]:
    async def gather() -> list[Speech]:
        async with AsyncSpeechClient(url, chunk_timeout=60) as client:
            return await asyncio.gather(*(client.synthesize(text, **fields) for text, fields in wanted))

    return asyncio.run(gather())


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    return torch.equal(torch.from_numpy(one.copy()), torch.from_numpy(other.copy()))


def test_64_requests_alone_and_all_at_once_give_the_same_samples(server: LiveServer, client: SpeechClient) -> None:
    wanted = requests()
    alone = [client.synthesize(text, **fields) for text, fields in wanted]
    together = all_at_once(server.url, wanted)
    same = sum(equal(one.audio, other.audio) for one, other in zip(alone, together, strict=True))
    print(f"\n{same} of {REQUESTS} bit for bit, {sum(len(speech.audio) for speech in alone) // HOP} frames")
    assert same == REQUESTS
    assert [speech.finish_reason for speech in alone] == [speech.finish_reason for speech in together]
    assert all(len(speech.audio) > 0 for speech in alone)
    # The seeds matter: eight different seeds a text, and hardly two utterances alike.
    assert len({speech.audio.tobytes() for speech in alone[1::2]}) > REQUESTS // 4


def test_formats_are_the_same_samples(client: SpeechClient) -> None:
    fields: dict[str, Any] = {"seed": 5, "temperature": 0.8, "max_frames": 15}
    floats = client.synthesize(SHORT, **fields).audio
    integers = client.synthesize(SHORT, format="s16", **fields).audio
    assert integers.dtype == np.int16
    assert equal(integers, as_int16(floats))


def test_a_seed_is_a_voice_take(client: SpeechClient) -> None:
    fields: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "max_frames": 15}
    first, again, other = (client.synthesize(SHORT, seed=seed, **fields).audio for seed in (11, 11, 12))
    assert equal(first, again)
    assert not np.array_equal(first, other)
    # Without a seed the server picks one: two takes differ.
    assert not np.array_equal(client.synthesize(SHORT, **fields).audio, client.synthesize(SHORT, **fields).audio)
    # The default is greedy, and then the seed has nothing to say.
    assert equal(client.synthesize(SHORT, seed=1, max_frames=8).audio, client.synthesize(SHORT, max_frames=8).audio)


def test_chunk_sizes_cut_the_same_samples_differently(server: LiveServer, client: SpeechClient) -> None:
    """The largest size is 60: more than the codec's window of 25 frames, and than a step of the vocoder (50)."""
    fields: dict[str, Any] = {"seed": 3, "temperature": 0.8, "top_k": 50, "max_frames": 70}
    cuts: list[dict[str, Any]] = [
        {},
        {"first_chunk_frames": 1, "chunk_frames": 1},
        {"first_chunk_frames": 1, "chunk_frames": 3},
        {"first_chunk_frames": 40},
        {"first_chunk_frames": 60, "chunk_frames": 60},
    ]
    alone = [client.synthesize(LONG, **fields, **cut) for cut in cuts]
    assert len(alone[0].audio) > 60 * HOP, "too short to tell"
    for cut, speech in zip(cuts, alone, strict=True):
        assert equal(speech.audio, alone[0].audio), cut
    for cut, speech in zip(cuts, all_at_once(server.url, [(LONG, {**fields, **cut}) for cut in cuts]), strict=True):
        assert equal(speech.audio, alone[0].audio), cut
