"""Two ways to order launch and resolve, side by side.

``sync``: launch a step, wait for it, do the host's work, launch the next. The device idles while the host works.

``lookahead``: launch step n + 1, then resolve step n. The host's work hides behind the device's. The price: a request
that ended in step n is already part of step n + 1; that row is an overrun, computed and dropped. Below ``min_batch``
rows the host has so little to do that nothing is gained, and the sync order runs.
"""

from __future__ import annotations

from collections.abc import Callable

from backends.decoder.runner import Flight


class DecodeLoop:
    """Calls ``launch`` (None: nothing to launch) and ``resolve`` in one of the two orders."""

    def __init__(
        self, launch: Callable[[], Flight | None], resolve: Callable[[Flight], None], lookahead: bool, min_batch: int
    ) -> None:
        self._launch, self._resolve = launch, resolve
        self._lookahead, self._min_batch = lookahead, min_batch
        self._pending: Flight | None = None

    def turn(self, running: int) -> None:
        """One decode step, with ``running`` requests in the batch."""
        if self._lookahead and running >= self._min_batch:
            self.lookahead()
        else:
            self.sync()

    def sync(self) -> None:
        """Launch and resolve the same step."""
        self.drain()
        flight = self._launch()
        if flight is not None:
            self._resolve(flight)

    def lookahead(self) -> None:
        """Launch the next step, then resolve the one before."""
        flight = self._launch()
        self.drain()
        self._pending = flight

    def drain(self) -> None:
        """Resolve what is in flight, so that the host knows all that the device knows."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._resolve(pending)

    def drop(self) -> None:
        """Forget what is in flight: its requests are gone."""
        self._pending = None
