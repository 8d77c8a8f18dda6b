"""The canary of a serving server: one request now and then, on a thread, two failures in a row are a finding."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from backends.launch.health import Health

#: One failure may be a hiccup of the machine.
_FAILURES = 2


class CanaryWatch:
    """``finding`` stays None while the server is well. ``stages``: the stages that the canary's request passes."""

    def __init__(self, health: Health, stages: Sequence[str], interval: float, timeout: float) -> None:
        self.finding: str | None = None
        self.names = health.canary_names
        self._health = health
        self._stages = stages
        self._interval = interval
        self._timeout = timeout
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)
        if interval > 0 and health.has_canary:
            self._thread.start()

    def stop(self) -> None:
        """No canary starts after this; one under way is left to its timeout."""
        self._stop.set()

    def _run(self) -> None:
        failures = 0
        while not self._stop.wait(self._interval):
            before = self._health.executions()
            problem = self._health.canary(self._timeout)
            failures = 0 if problem is None or self._moving(before) else failures + 1
            if failures >= _FAILURES and not self._stop.is_set():
                self.finding = f"the test request failed {failures} times in a row: {problem}"
                return

    def _moving(self, before: dict[str, int]) -> bool:
        """True if every stage has worked meanwhile: then the server is busy and the canary waits its turn."""
        after = self._health.executions()
        return bool(before) and all(after.get(name, 0) > before.get(name, 0) for name in self._stages)
