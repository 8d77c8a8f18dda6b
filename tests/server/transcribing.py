"""Requests to the ensemble ``asr``, for server tests: one answer, many at once, and clips of real speech."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile
from safetensors.numpy import load_file

from backends.settings import home
from tests.server.direct import DirectStream

RATE = 16_000
_TYPES: dict[str, Any] = {
    "audio": np.float32, "sample_rate": np.int32, "channels": np.int32, "max_tokens": np.int32,
    "temperature": np.float32, "seed": np.int64,
}  # fmt: skip


@dataclass(frozen=True)
class Transcription:
    """All responses of a request, put together. ``deltas``: the text of each."""

    deltas: list[str]
    segments: list[dict[str, Any]]
    language: str
    finish_reason: str
    error: str
    timeline: dict[str, float]

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def tensors(fields: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Input tensors: scalars become [1], strings and bytes BYTES."""
    made = {}
    for name, value in fields.items():
        value = value.encode() if isinstance(value, str) else value
        kind = _TYPES.get(name, np.object_)
        made[name] = np.array([value], dtype=kind) if np.ndim(value) == 0 else np.asarray(value, dtype=kind)
    return made


def transcribe(url: str, **fields: Any) -> Transcription:
    """Ask, and check what every stream promises: indices in order, one last response, times that ascend."""
    with DirectStream(url, "asr", **tensors(fields)) as stream:
        found = []
        while (outputs := stream.next(timeout=60)) is not None:
            found.append(outputs)

    def column(name: str) -> list[Any]:
        values = [each[name][0] for each in found]
        return [value.decode() if isinstance(value, bytes) else value for value in values]

    assert column("chunk_index") == list(range(len(found)))
    assert column("final") == [False] * (len(found) - 1) + [True]
    assert column("finish_reason")[:-1] == column("error")[:-1] == column("timeline")[:-1] == [""] * (len(found) - 1)
    segments = [segment for text in column("segments") for segment in json.loads(text)]
    times = [time for segment in segments for time in (segment["start"], segment["end"])]
    assert times == sorted(times)
    return Transcription(
        column("text"), segments, column("detected_language")[-1], column("finish_reason")[-1], column("error")[-1],
        json.loads(column("timeline")[-1] or "{}"),
    )  # fmt: skip


def together(url: str, requests: Sequence[dict[str, Any]]) -> list[Any]:
    """The transcription, or the error, of each; all sent at once, each on a connection of its own."""

    def one(fields: dict[str, Any]) -> Any:
        try:
            return transcribe(url, **fields)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(one, requests))


def voice(name: str) -> bytes:
    """The file of a voice that ships: real speech."""
    return (home() / "voices" / f"{name}.flac").read_bytes()


def spoken() -> list[dict[str, Any]]:
    """Five clips, as fields of a request: the two voices that ship, and what the demo voice said."""
    golden = home() / "tests" / "golden"
    said = [load_file(golden / f"greedy_{number}.safetensors")["pcm"] for number in (0, 1, 3)]
    clips: list[dict[str, Any]] = [{"audio": pcm, "sample_rate": 24_000} for pcm in said]
    return clips + [{"audio_file": voice(name)} for name in ("rms", "slt")]


def samples(name: str) -> np.ndarray[Any, Any]:
    """A voice that ships as float32 [n] at 16 kHz."""
    found, rate = soundfile.read(home() / "voices" / f"{name}.flac", dtype="float32")
    assert rate == RATE
    return np.asarray(found)
