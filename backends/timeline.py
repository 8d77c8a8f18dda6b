"""When a request passed each station of the pipeline: how every bottleneck is found.

Stamps are seconds of the machine's monotonic clock, which all stages of a server share. They travel with the request as
JSON and reach the client on the last chunk, relative to the moment the request came in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
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
#: The stations of a transcription: its first window's, but for the last, which is the whole's.
ASR_STATIONS = (
    "received",  # asr_prompt took the request
    "audio",  # its audio was decoded, resampled and cut into windows
    "built",  # the features were made
    "encoded",  # asr_encoder had answered with states
    "queued",  # the decoder accepted it
    "scheduled",  # it got a slot
    "first_step",  # its prompt was read, its first decode step began
    "first_chunk",  # the decoder handed over the first tokens
    "last_chunk",  # ... and the last of the last window
)
# The station that each one waits for: the one before it, but for the vocoder, which is at work while the decoder goes
# on. The first audio of a long text leaves before the decoder's last chunk.
_AFTER = {
    **dict(zip(STATIONS[1:], STATIONS, strict=False)),
    "vocoder_first": "first_chunk",
    "vocoder_last": "last_chunk",
}


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

    def relative(self, stations: Sequence[str] = STATIONS) -> dict[str, float]:
        """Seconds since the first stamp, in the order of ``stations``."""
        if not self.stamps:
            return {}
        start = min(self.stamps.values())
        return {name: round(self.stamps[name] - start, 6) for name in stations if name in self.stamps}

    def spans(self) -> dict[str, float]:
        """Seconds that each station took: ``queued`` is the time from built to queued, ``vocoder_first`` that from the
        decoder's first chunk to the first audio, ``vocoder_last`` that from its last chunk to the last. Never negative.
        A station without a stamp is left out; what follows it counts from the last one before that has a stamp.
        """
        spans = {}
        for name in STATIONS[1:]:
            before = _AFTER[name]
            while before not in self.stamps and before in _AFTER:
                before = _AFTER[before]
            if name in self.stamps and before in self.stamps:
                spans[name] = self.stamps[name] - self.stamps[before]
        return spans
