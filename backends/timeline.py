"""When a request passed each station of the pipeline: how every bottleneck is found.

Stamps are seconds of the machine's monotonic clock, which all stages of a server share. They travel with the request as
JSON and reach the client on the last chunk, relative to the moment the request came in.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

STATIONS = (
    "received",  # tts_prompt took the request
    "built",  # the prompt rows were made
    "queued",  # the decoder accepted it
    "scheduled",  # it got a slot
    "first_step",  # its prompt was read, its first decode step began
    "first_chunk",  # the decoder handed over the first chunk
    "last_chunk",  # ... and the last
    "vocoder_first",  # the vocoder sent the first audio
    "vocoder_last",  # ... and the last
)


@dataclass(slots=True)
class Timeline:
    """Stamps by station; the first time counts."""

    stamps: dict[str, float] = field(default_factory=dict)

    def stamp(self, station: str, at: float | None = None) -> None:
        """Note that ``station`` is passed, now or at ``at``. Later notes of the same station change nothing."""
        self.stamps.setdefault(station, time.monotonic() if at is None else at)

    def to_json(self) -> str:
        """Absolute stamps, for the next stage."""
        return json.dumps(self.stamps)

    @classmethod
    def from_json(cls, text: str) -> Timeline:
        """What :meth:`to_json` wrote; an empty timeline for an empty string."""
        return cls(json.loads(text) if text else {})

    def relative(self) -> dict[str, float]:
        """Seconds since the first stamp, in the order of the stations."""
        if not self.stamps:
            return {}
        start = min(self.stamps.values())
        return {name: round(self.stamps[name] - start, 6) for name in STATIONS if name in self.stamps}

    def spans(self) -> dict[str, float]:
        """Seconds between stations that follow each other: ``queued`` is the time from built to queued, and so on."""
        passed = [(name, self.stamps[name]) for name in STATIONS if name in self.stamps]
        return {name: at - before for (_, before), (name, at) in zip(passed, passed[1:], strict=False)}
