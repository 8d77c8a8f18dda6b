"""One chunk of a transcript, and a whole one gathered from the chunks of a stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from client.stream import ChunkStream


@dataclass(frozen=True)
class Segment:
    """A stretch of speech: ``start`` and ``end`` in seconds from the beginning of the recording, and what was said.
    ``speaker``: 1, 2 … within a window of the recording, from models that tell speakers apart; None from others."""

    start: float
    end: float
    text: str
    speaker: int | None = None


@dataclass(frozen=True)
class TranscriptChunk:
    """One response of the server.

    text           what is new; all texts of a stream, one after another, are the transcript. May be empty
    segments       those that are finished with this chunk
    language       what is spoken, as the model calls it; "" while that is unknown
    index          0, 1, 2 … within its stream
    final          True for the last chunk, and only for it
    finish_reason  "" until the last chunk, then ``stop``, ``length`` or ``cancelled`` (``error`` is raised instead)
    received_at    time.monotonic() in seconds, when the chunk reached this process
    timeline       what the server noted about the request, as in AudioChunk
    """

    text: str
    segments: tuple[Segment, ...]
    language: str
    index: int
    final: bool
    finish_reason: str
    received_at: float
    timeline: Mapping[str, float] | None = None


class TranscriptStream(ChunkStream[TranscriptChunk]):
    """A ChunkStream of TranscriptChunk."""


@dataclass(frozen=True)
class Transcript:
    """All of one recording.

    text           what was said
    segments       with their times, in order
    language       what is spoken, as the model calls it; "" when it never said
    finish_reason  ``stop``, ``length`` (a window reached its limit of tokens: words may be missing) or ``cancelled``
    first_text_s   seconds from the request to the first text; None when there was none
    total_s        seconds from the request to the last chunk
    """

    text: str
    segments: tuple[Segment, ...]
    language: str
    finish_reason: str
    first_text_s: float | None
    total_s: float


def join(chunks: Sequence[TranscriptChunk], started_at: float) -> Transcript:
    """Join the chunks of one finished stream, which has at least its last chunk."""
    spoken = first_text(chunks)
    return Transcript(
        text="".join(chunk.text for chunk in chunks),
        segments=tuple(segment for chunk in chunks for segment in chunk.segments),
        language=next((chunk.language for chunk in reversed(chunks) if chunk.language), ""),
        finish_reason=chunks[-1].finish_reason,
        first_text_s=None if spoken is None else spoken - started_at,
        total_s=chunks[-1].received_at - started_at,
    )


def first_text(chunks: Iterable[TranscriptChunk]) -> float | None:
    """Arrival of the first chunk with something to read in it; None when there is none."""
    return next((chunk.received_at for chunk in chunks if chunk.text.strip()), None)


def murmur(seconds: float = 1.0, rate: int = 16000) -> tuple[np.ndarray, int]:
    """Something that is no silence: 120 Hz and its overtones, swelling and fading four times a second. float32 [n]."""
    at = np.arange(round(seconds * rate)) / rate
    tone = sum(np.sin(2 * math.pi * 120 * k * at) / k for k in range(1, 16))
    return (0.1 * tone * np.sin(4 * math.pi * at) ** 2).astype(np.float32), rate
