"""What became of one request, whatever it was for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    timeline       what the server noted; None when it sent none
    """

    index: int
    due: float
    sent: float
    ended: float
    kind: str
    message: str = ""
    finish_reason: str = ""
    timeline: Mapping[str, float] | None = None

    @property
    def ok(self) -> bool:
        return self.kind == OK

    @property
    def lost(self) -> bool:
        """Accepted, or not refused, and then left without an end."""
        return self.kind in LOST

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Latencies in seconds, counted from ``due``."""
        return {
            "index": self.index,
            "due": self.due,
            "sent": self.sent,
            "ended": self.ended,
            "kind": self.kind,
            "message": self.message,
            "finish_reason": self.finish_reason,
            "timeline": dict(self.timeline) if self.timeline is not None else None,
        }
