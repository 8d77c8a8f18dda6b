"""Counters, gauges and histograms without a server behind them.

Engines write here from any thread at the cost of an addition; the stage copies the values into Triton's metrics from a
thread of its own, because a Triton metric call crosses a process border (18 us) and does not belong into a decode step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Counter:
    """A number that only grows."""

    name: str
    description: str
    value: float = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add ``amount`` >= 0. One writer a counter, or a lock around it."""
        self.value += amount


@dataclass
class CounterFamily:
    """One counter for each combination of label values, made when it is first counted."""

    name: str
    description: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    def inc(self, *labels: object, amount: float = 1.0) -> None:
        """Add ``amount`` >= 0 to the counter of these label values, in the order of ``labels``. One writer."""
        key = tuple(str(label) for label in labels)
        if len(key) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {len(key)} of them")
        self.values[key] = self.values.get(key, 0.0) + amount


@dataclass
class Gauge:
    """A number that goes up and down."""

    name: str
    description: str
    value: float = 0.0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value


@dataclass
class Histogram:
    """Observations in buckets; ``buckets`` are upper bounds, ascending."""

    name: str
    description: str
    buckets: tuple[float, ...]
    _pending: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, value: float) -> None:
        """Add one observation."""
        with self._lock:
            self._pending.append(value)

    def drain(self) -> list[float]:
        """Take the observations that nobody has taken yet."""
        with self._lock:
            pending, self._pending = self._pending, []
        return pending


Metric = Counter | CounterFamily | Gauge | Histogram


class Metrics:
    """The metrics of one engine, by attribute and by iteration.

    An engine in another process has a copy: what that gains (:meth:`changes`) is added here (:meth:`gain`).
    """

    def changes(self) -> dict[str, float | list[float]]:
        """What is new since the last call, by name: growth of counters, values of gauges, observations of histograms.
        Counter families are left out. One caller.
        """
        seen: dict[str, float] = self.__dict__.setdefault("_seen", {})
        found: dict[str, float | list[float]] = {}
        for metric in self:
            if isinstance(metric, Histogram):
                if values := metric.drain():
                    found[metric.name] = values
            elif isinstance(metric, Counter | Gauge) and (value := metric.value) != (old := seen.get(metric.name, 0.0)):
                found[metric.name] = value - old if isinstance(metric, Counter) else value
                seen[metric.name] = value
        return found

    def gain(self, changes: dict[str, float | list[float]]) -> None:
        """Add what :meth:`changes` of a copy said."""
        for metric in self:
            change = changes.get(metric.name)
            if isinstance(metric, Histogram) and isinstance(change, list):
                for value in change:
                    metric.observe(value)
            elif isinstance(change, float | int):
                if isinstance(metric, Counter):
                    metric.inc(change)
                elif isinstance(metric, Gauge):
                    metric.set(change)

    def __iter__(self) -> Iterator[Metric]:
        values = [
            each for value in vars(self).values() for each in (value.values() if isinstance(value, dict) else [value])
        ]
        return iter([value for value in values if isinstance(value, Counter | CounterFamily | Gauge | Histogram)])
