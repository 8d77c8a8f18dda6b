"""Transcription as a load: clips that are written down one after another, the record of each, the sum of a level."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from client.aio import AsyncTranscriber
from client.bench.clips import Clip
from client.bench.distribution import Distribution, distribution
from client.bench.level import Level, Tally, common
from client.bench.record import Record
from client.bench.stages import ASR_STAGES, Breakdown, breakdown
from client.bench.workload import Outcome, Workload
from client.request import TranscriptionRequest
from client.transcript import TranscriptChunk, TranscriptStream

#: Bounds in seconds of the groups by length of the recording.
LENGTHS = (0.0, 10.0, 60.0, 300.0, math.inf)
#: Numbers of recordings that are to be unseen: one count for all levels and warm-ups, another for every run.
_MARKS = itertools.count(time.time_ns() // 1_000_000)


@dataclass(frozen=True)
class TranscriptRecord(Record):
    """One request for a transcript.

    clip     name of the recording
    audio_s  its length
    chunks   arrival of every chunk, and the characters in it that are no blanks
    """

    clip: str = ""
    audio_s: float = 0.0
    chunks: tuple[tuple[float, int], ...] = ()

    @property
    def latency_s(self) -> float:
        """From when it was due until its last chunk, or its error."""
        return self.ended - self.due

    @property
    def first_text_s(self) -> float | None:
        """From when it was due until there was something to read; None when that never came."""
        return next((at - self.due for at, characters in self.chunks if characters), None)

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {
            "clip": self.clip,
            "audio_s": self.audio_s,
            "latency_s": self.latency_s,
            "first_text_s": self.first_text_s,
            "characters": sum(characters for _, characters in self.chunks),
            "chunks": [list(chunk) for chunk in self.chunks],
        }


@dataclass(frozen=True)
class Length:
    """The finished requests whose recordings are of one length: from ``least`` seconds to below ``below`` (None: no
    limit). ``audio`` is the length itself, the others as in TranscriptLevel."""

    least: float
    below: float | None
    audio: Distribution
    latency: Distribution
    first_text: Distribution
    stages: Breakdown | None


@dataclass(frozen=True)
class TranscriptLevel(Level):
    """A level of requests for transcripts.

    latency     from when a request was due until its last chunk
    first_text  … until there was something to read, of those with text
    lengths     the same by length of the recording, the groups that there are
    """

    latency: Distribution
    first_text: Distribution
    lengths: tuple[Length, ...]


def summarise(tally: Tally, records: Sequence[TranscriptRecord]) -> TranscriptLevel:
    """Sum up the records of one level."""
    done = [record for record in records if record.ok]

    def audio(window: float) -> float:
        return math.fsum(record.audio_s for record in done if record.ended <= window)

    groups = []
    for least, below in zip(LENGTHS, LENGTHS[1:], strict=False):
        if within := [record for record in done if least <= record.audio_s < below]:
            groups.append(
                Length(
                    least=least,
                    below=below if math.isfinite(below) else None,
                    audio=distribution(record.audio_s for record in within),
                    latency=distribution(record.latency_s for record in within),
                    first_text=_first_texts(within),
                    stages=breakdown(within, ASR_STAGES, ()),
                )
            )
    return TranscriptLevel(
        **common(tally, records, audio, ASR_STAGES),
        latency=distribution(record.latency_s for record in done),
        first_text=_first_texts(done),
        lengths=tuple(groups),
    )


def _first_texts(records: Sequence[TranscriptRecord]) -> Distribution:
    return distribution(first for record in records if (first := record.first_text_s) is not None)


@dataclass(frozen=True)
class TranscriptWorkload(Workload[TranscriptChunk, TranscriptRecord]):
    """Request i sends clip i mod len(clips), with the seed of ``request``, if any, plus i; all else is as in
    ``request``, whose audio does not matter. ``unseen``: no two requests send the same recording; the clips must then
    have a ``rate``."""

    clips: Sequence[Clip]
    request: TranscriptionRequest
    unseen: bool = False
    serve_args = ("--pipelines", "asr")
    others = ("tts_", "audio_encoder")

    def client(self, url: str, model: str | None, **options: Any) -> AsyncTranscriber:
        return AsyncTranscriber(url, model=model or "asr", **options)

    def stream(self, client: Any, index: int) -> TranscriptStream:
        clip, seed = self._clip(index), self.request.seed
        audio = clip.marked(next(_MARKS)) if self.unseen else clip.data
        return client.stream(replace(self.request, audio=audio, seed=None if seed is None else seed + index))

    def size(self, chunk: TranscriptChunk) -> int:
        return len("".join(chunk.text.split()))

    def record(self, outcome: Outcome[TranscriptChunk]) -> TranscriptRecord:
        clip = self._clip(outcome.index)
        return TranscriptRecord(**outcome.fields(), clip=clip.name, audio_s=clip.seconds, chunks=tuple(outcome.arrived))

    def level(self, tally: Tally, records: Sequence[TranscriptRecord]) -> TranscriptLevel:
        return summarise(tally, records)

    def reversed(self) -> TranscriptWorkload:
        return replace(self, clips=tuple(reversed(self.clips)))

    def as_dict(self) -> dict[str, Any]:
        settings = {name: value for name, value in vars(self.request).items() if name not in ("audio", "extra")}
        seconds = [clip.seconds for clip in self.clips]
        return settings | {
            "unseen": self.unseen,
            "clips": len(self.clips),
            "audio_s": {"mean": math.fsum(seconds) / len(seconds), "least": min(seconds), "most": max(seconds)},
        }

    def _clip(self, index: int) -> Clip:
        return self.clips[index % len(self.clips)]
