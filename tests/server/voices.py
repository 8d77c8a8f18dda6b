"""Requests with a voice, for several server tests: clips, requests that are under way together, counters."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np
import soundfile

from backends.settings import home
from client import AsyncSpeechClient
from client.sync import _shared_loop
from tests.server.live import LiveServer

TEXT = "Please leave a message after the tone."
#: The voices that ship, and their files.
VOICES = ("rms", "slt")
FILES = {name: (home() / "voices" / f"{name}.flac").read_bytes() for name in VOICES}
HITS, MISSES, MERGED = "voxstage_voice_hits", "voxstage_voice_misses", "voxstage_voice_merged"
WAITING, REFUSED = "voxstage_voice_waiting", "voxstage_voice_refused"


def piece(name: str, begin: float, seconds: float) -> dict[str, Any]:
    """A part of a voice's clip as samples: a clip that no other test has sent."""
    samples, rate = soundfile.read(home() / "voices" / f"{name}.flac", dtype="float32")
    return {
        "reference_audio": samples[round(begin * rate) : round((begin + seconds) * rate)],
        "reference_sample_rate": rate,
    }


class Together:
    """Requests for TEXT, sent at the same time; the test goes on meanwhile."""

    def __init__(self, url: str, requests: Sequence[dict[str, Any]]) -> None:
        async def work() -> list[Any]:
            async with AsyncSpeechClient(url, chunk_timeout=60) as client:
                calls = (client.synthesize(TEXT, **fields) for fields in requests)
                found = await asyncio.gather(*calls, return_exceptions=True)
                return [each if isinstance(each, BaseException) else each.audio for each in found]

        self._future = asyncio.run_coroutine_threadsafe(work(), _shared_loop())

    def outcomes(self) -> list[Any]:
        """The samples, or the error, of each."""
        return self._future.result(120)

    def audio(self) -> list[np.ndarray[Any, Any]]:
        """The samples of each. Raises the first error."""
        found = self.outcomes()
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found


class Counters:
    """How far counters have moved since this was made, or since the last look."""

    def __init__(self, server: LiveServer, *names: str) -> None:
        self._server, self._names = server, names or (HITS, MISSES, MERGED)
        self._before = self._read()

    def moved(self) -> tuple[int, ...]:
        now, before = self._read(), self._before
        self._before = now
        return tuple(int(a - b) for a, b in zip(now, before, strict=True))

    def _read(self) -> list[float]:
        self._server.settled(WAITING)
        values = self._server.scrape()
        return [values[name] for name in self._names]


def encodes(server: LiveServer) -> int:
    """Clips that audio_encoder has encoded, by Triton's own count."""
    with urllib.request.urlopen(f"{server.base}/v2/models/audio_encoder/stats", timeout=10) as answer:
        return int(json.load(answer)["model_stats"][0]["inference_count"])
