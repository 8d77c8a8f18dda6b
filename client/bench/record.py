"""What became of one request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from client.playback import Playback, measure

OK = "OK"
#: Kinds that mean: the request went in, and nobody ever said how it ended.
LOST = ("TIMEOUT", "BROKEN")


@dataclass(frozen=True)
class Record:
    """One request that is over. Times are in seconds since the start of its level.

    index          0, 1, 2 … in the order of arrival within the level
    due            when it was to go out: in an open loop the time of the schedule, in a closed one ``sent``
    sent           when it went out
    ended          when its last chunk or its error arrived
    kind           ``OK``, or the code of the error
    message        what the error said
    finish_reason  ``stop`` or ``length`` when OK
    sample_rate    samples a second; 0 when no chunk came
    chunks         arrival and number of samples (of one channel) of every chunk
    timeline       what the server noted; None when it sent none
    """

    index: int
    due: float
    sent: float
    ended: float
    kind: str
    message: str = ""
    finish_reason: str = ""
    sample_rate: int = 0
    chunks: tuple[tuple[float, int], ...] = ()
    timeline: Mapping[str, float] | None = None

    @property
    def ok(self) -> bool:
        return self.kind == OK

    @property
    def lost(self) -> bool:
        """Accepted, or not refused, and then left without an end."""
        return self.kind in LOST

    @cached_property
    def playback(self) -> Playback:
        """First chunk, gaps, real-time factor and underrun, all counted from ``due``."""
        return measure(self.due, [at for at, _ in self.chunks], [n for _, n in self.chunks], self.sample_rate)

    def audio_until(self, end: float) -> float:
        """Seconds of audio that arrived up to ``end``."""
        return sum(n for at, n in self.chunks if at <= end) / self.sample_rate if self.sample_rate else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Latencies in seconds, counted from ``due``."""
        first, factor = self.playback.first_chunk_s, self.playback.real_time_factor
        return {
            "index": self.index,
            "due": self.due,
            "sent": self.sent,
            "ended": self.ended,
            "kind": self.kind,
            "message": self.message,
            "finish_reason": self.finish_reason,
            "sample_rate": self.sample_rate,
            "first_chunk_s": first if math.isfinite(first) else None,
            "audio_s": self.playback.audio_s,
            "real_time_factor": factor if math.isfinite(factor) else None,
            "underrun_s": self.playback.underrun_s,
            "chunks": [list(chunk) for chunk in self.chunks],
            "timeline": dict(self.timeline) if self.timeline is not None else None,
        }
