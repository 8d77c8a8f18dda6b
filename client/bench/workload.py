"""What a load consists of: how one request is sent, what is kept of its answer, and how a level is summed up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from client.bench.level import Level, Tally
from client.bench.record import OK, Record
from client.connection import Connection
from client.stream import C, ChunkStream

R = TypeVar("R", bound=Record)


@dataclass
class Outcome(Generic[C]):
    """One request that is over, before a record is made of it. Times as in Record.

    arrived  arrival of every chunk, and how much of what matters (``Workload.size``) it brought
    last     the last chunk that came; None when none did
    """

    index: int
    due: float = 0.0
    sent: float = 0.0
    ended: float = 0.0
    kind: str = OK
    message: str = ""
    arrived: list[tuple[float, int]] = field(default_factory=list)
    last: C | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of Record."""
        last: Any = self.last
        return {
            "index": self.index,
            "due": self.due,
            "sent": self.sent,
            "ended": self.ended,
            "kind": self.kind,
            "message": self.message,
            "finish_reason": last.finish_reason if last is not None else "",
            "timeline": last.timeline if last is not None else None,
        }


class Workload(ABC, Generic[C, R]):
    """A kind of request, and all requests of a measurement.

    serve_args  what serve.py needs to serve it
    others      how the names of stages begin that have nothing to do with it
    """

    serve_args: ClassVar[tuple[str, ...]]
    others: ClassVar[tuple[str, ...]]

    @abstractmethod
    def client(self, url: str, model: str | None, **options: Any) -> Connection:
        """A client that takes these requests. ``model``: None for the usual one."""

    @abstractmethod
    def stream(self, client: Any, index: int) -> ChunkStream[C]:
        """Request ``index`` of a level, not yet sent."""

    @abstractmethod
    def size(self, chunk: C) -> int:
        """How much of what matters a chunk brings: samples, or characters."""

    @abstractmethod
    def record(self, outcome: Outcome[C]) -> R:
        """The record of a request that is over."""

    @abstractmethod
    def level(self, tally: Tally, records: Sequence[R]) -> Level:
        """The sum of a level."""

    @abstractmethod
    def reversed(self) -> Workload[C, R]:
        """The same requests from the end, for a warm-up that leaves the first ones unseen."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """What is asked for in every request, for JSON."""
