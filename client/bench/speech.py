"""Speech as a load: texts that are said one after another, the record of each, and the sum of a level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from client.aio import AsyncSpeechClient
from client.bench.distribution import Distribution, distribution
from client.bench.level import Level, Tally, common
from client.bench.record import Record
from client.bench.stages import SPEECH_ASIDE, STAGES
from client.bench.workload import Outcome, Workload
from client.chunk import AudioChunk
from client.playback import Playback, measure
from client.request import SpeechRequest
from client.speech import SpeechStream

UNDERRUNS_S = (0.0, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Underrun:
    """Streams whose playback ran dry. ``shares``: by threshold in seconds, the share (0 … 1) of the ``n`` streams with
    audio that were silent for longer than that in the middle; ``worst`` in seconds. None when n is 0."""

    n: int
    shares: dict[float, float | None]
    worst: float | None


@dataclass(frozen=True)
class SpeechRecord(Record):
    """One request for speech.

    sample_rate  samples a second; 0 when no chunk came
    chunks       arrival and number of samples (of one channel) of every chunk
    """

    sample_rate: int = 0
    chunks: tuple[tuple[float, int], ...] = ()

    @cached_property
    def playback(self) -> Playback:
        """First chunk, gaps, real-time factor and underrun, all counted from ``due``."""
        return measure(self.due, [at for at, _ in self.chunks], [n for _, n in self.chunks], self.sample_rate)

    def audio_until(self, end: float) -> float:
        """Seconds of audio that arrived up to ``end``."""
        return sum(n for at, n in self.chunks if at <= end) / self.sample_rate if self.sample_rate else 0.0

    def as_dict(self) -> dict[str, Any]:
        first, factor = self.playback.first_chunk_s, self.playback.real_time_factor
        return super().as_dict() | {
            "sample_rate": self.sample_rate,
            "first_chunk_s": first if math.isfinite(first) else None,
            "audio_s": self.playback.audio_s,
            "real_time_factor": factor if math.isfinite(factor) else None,
            "underrun_s": self.playback.underrun_s,
            "chunks": [list(chunk) for chunk in self.chunks],
        }


@dataclass(frozen=True)
class SpeechLevel(Level):
    """A level of requests for speech; the distributions are over streams with audio, ``gap`` over all their chunks."""

    first_chunk: Distribution
    gap: Distribution
    real_time_factor: Distribution
    underrun: Underrun

    def as_dict(self) -> dict[str, Any]:
        found = super().as_dict()
        found["underrun"]["shares"] = {f"{1000 * over:.0f} ms": s for over, s in self.underrun.shares.items()}
        return found


def summarise(tally: Tally, records: Sequence[SpeechRecord]) -> SpeechLevel:
    """Sum up the records of one level."""
    done = [record for record in records if record.ok]
    heard = [record.playback for record in done if record.playback.audio_s > 0]

    def audio(window: float) -> float:
        return math.fsum(record.audio_until(window) for record in done)

    return SpeechLevel(
        **common(tally, records, audio, STAGES, SPEECH_ASIDE),
        first_chunk=distribution(play.first_chunk_s for play in heard),
        gap=distribution(gap for play in heard for gap in play.gaps_s),
        real_time_factor=distribution(play.real_time_factor for play in heard),
        underrun=underrun([play.underrun_s for play in heard]),
    )


def underrun(seconds: Sequence[float]) -> Underrun:
    """Shares of streams that ran dry, from each stream's silence in seconds (``Playback.underrun_s``)."""
    n = len(seconds)
    shares = {over: sum(one > over for one in seconds) / n if n else None for over in UNDERRUNS_S}
    return Underrun(n, shares, max(seconds, default=None))


@dataclass(frozen=True)
class SpeechWorkload(Workload[AudioChunk, SpeechRecord]):
    """Request i says text i mod len(texts), with the seed of ``request`` plus i; all else is as in ``request``."""

    texts: Sequence[bytes]
    request: SpeechRequest
    serve_args = ()
    others = ("asr_",)

    def client(self, url: str, model: str | None, **options: Any) -> AsyncSpeechClient:
        return AsyncSpeechClient(url, model=model or "tts", **options)

    def stream(self, client: Any, index: int) -> SpeechStream:
        seed = self.request.seed
        text = self.texts[index % len(self.texts)]
        return client.stream(replace(self.request, text=text, seed=None if seed is None else seed + index))

    def size(self, chunk: AudioChunk) -> int:
        return chunk.samples

    def record(self, outcome: Outcome[AudioChunk]) -> SpeechRecord:
        rate = outcome.last.sample_rate if outcome.last is not None else 0
        return SpeechRecord(**outcome.fields(), sample_rate=rate, chunks=tuple(outcome.arrived))

    def level(self, tally: Tally, records: Sequence[SpeechRecord]) -> SpeechLevel:
        return summarise(tally, records)

    def reversed(self) -> SpeechWorkload:
        return replace(self, texts=tuple(reversed(self.texts)))

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.request).items() if name not in ("text", "extra")}
