"""Who waits, who is read in, who runs. Pure bookkeeping: no tensors, no threads, no clock."""

from __future__ import annotations

from collections import deque

from backends.decoder.request import DecodeRequest, Phase
from backends.errors import Unavailable


class Scheduler:
    """Admission by arrival into a fixed number of slots.

    A request is in exactly one place: the waiting queue, the prefill queue (it has a slot), or the running set (its
    slot decodes). :meth:`remove` is the only way out and gives the slot back.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_running, self.max_waiting = max_running, max_waiting
        self.waiting: deque[DecodeRequest] = deque()
        self.prefilling: deque[DecodeRequest] = deque()
        self.running: dict[int, DecodeRequest] = {}
        self._free = list(range(max_running - 1, -1, -1))
        self._by_stream: dict[int, DecodeRequest] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        """Requests inside, in whatever phase."""
        return len(self._by_stream)

    @property
    def slots_in_use(self) -> int:
        """Slots that a request holds."""
        return self.max_running - len(self._free)

    def check_room(self) -> None:
        """Raise Unavailable when ``max_running`` and ``max_waiting`` are both reached."""
        # Those for whom a slot is free already do not count as waiting: they are admitted before the next step.
        if len(self._by_stream) >= self.max_running + self.max_waiting:
            raise Unavailable(
                f"{len(self._by_stream)} requests are in the decoder: max_running {self.max_running} and "
                f"max_waiting {self.max_waiting} are both reached; try again later"
            )

    def add(self, request: DecodeRequest) -> None:
        """Queue a request. Raises Unavailable when there is no room."""
        self.check_room()
        self._by_stream[request.stream_id] = request
        self._arrivals += 1
        request.order = self._arrivals
        self.waiting.append(request)

    def find(self, stream_id: int) -> DecodeRequest | None:
        """The request of that stream, unless it is gone."""
        return self._by_stream.get(stream_id)

    def all(self) -> list[DecodeRequest]:
        """Every request inside, oldest first."""
        return list(self._by_stream.values())

    def admit(self) -> None:
        """Give free slots to those who have waited longest; they go on to prefill."""
        while self.waiting and self._free:
            request = self.waiting.popleft()
            request.slot, request.phase = self._free.pop(), Phase.PREFILL
            self.prefilling.append(request)

    def next_prefill(self) -> DecodeRequest | None:
        """The request whose prompt is read next: the oldest."""
        return self.prefilling[0] if self.prefilling else None

    def run(self, request: DecodeRequest) -> None:
        """Its prompt is read: from now on its slot decodes."""
        self.prefilling.remove(request)
        request.phase = Phase.RUNNING
        self.running[request.slot] = request

    def retract(self, request: DecodeRequest) -> None:
        """Send a request back to the head of the queue: it keeps its place in the order of arrival, not its slot."""
        if request.phase is Phase.PREFILL:
            self.prefilling.remove(request)
        else:
            del self.running[request.slot]
        self._free.append(request.slot)
        request.slot, request.phase = -1, Phase.WAITING
        # Several may have been sent back: the oldest stands in front.
        place = sum(1 for other in self.waiting if other.order < request.order)
        self.waiting.insert(place, request)

    def holding_pages(self) -> list[DecodeRequest]:
        """Requests that hold pages, oldest first."""
        inside = [*self.prefilling, *self.running.values()]
        return sorted((each for each in inside if each.pages), key=lambda each: each.order)

    def remove(self, request: DecodeRequest) -> None:
        """Take a request out, from whatever phase, and free its slot."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        elif request.phase is Phase.PREFILL:
            self.prefilling.remove(request)
        elif request.phase is Phase.RUNNING:
            del self.running[request.slot]
        if request.slot >= 0:
            self._free.append(request.slot)
            request.slot = -1
        request.phase = Phase.DONE
        del self._by_stream[request.stream_id]

    def check_idle(self) -> None:
        """Raise RuntimeError unless everything is back: no request, every slot free, none twice."""
        if self._by_stream or self.waiting or self.prefilling or self.running:
            raise RuntimeError(f"the scheduler is not idle: {len(self._by_stream)} requests inside")
        if sorted(self._free) != list(range(self.max_running)):
            raise RuntimeError(f"slots lost or owned twice: free are {sorted(self._free)} of {self.max_running}")
