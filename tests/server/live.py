"""A running server with the real voice, for tests: ports, process ids, metrics, and an end that is checked."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.dummies import Serve, leftovers

#: What must be 0 when no request is inside.
GAUGES = (
    "voxstage_voice_waiting", "voxstage_encoder_clips",
    "voxstage_decoder_slots", "voxstage_decoder_waiting", "voxstage_vocoder_streams",
)  # fmt: skip
FRAMES = "voxstage_decoder_frames"
#: The stages copy their metrics into Triton's every 0.1 s; after three times that, a copy has surely been made.
MIRROR_SECONDS = 0.3
_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (?P<value>\S+)$", re.MULTILINE)


class LiveServer:
    """``serve.py`` on free ports of this machine.

    ``url`` is host:port for gRPC, ``base`` the address for HTTP. The canary is off, so that the counters count the
    requests of the tests and nothing else.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Triton's whole log, so that a failed end says what was still inside.
        self.serve = Serve(folder, "--canary-interval", "0", "--log-verbose", "1", *arguments)
        try:
            self.state = self.serve.wait_serving(180)
        except BaseException:
            self.kill()
            raise
        self.http, self.grpc, self.metrics = (int(self.state[key]) for key in ("http", "grpc", "metrics"))
        self.pid, self.triton_pid = int(self.state["pid"]), int(self.state["triton_pid"])
        self.stages: dict[str, int] = dict(self.state["stages"])
        self.url, self.base = f"127.0.0.1:{self.grpc}", f"http://127.0.0.1:{self.http}"

    @property
    def ended(self) -> bool:
        return self.serve.process.poll() is not None

    def scrape(self) -> dict[str, float]:
        """Every metric by name, summed over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        values: dict[str, float] = {}
        for line in _LINE.finditer(text):
            values[line["name"]] = values.get(line["name"], 0.0) + float(line["value"])
        return values

    def metric(self, name: str) -> float:
        """The value now; up to 0.1 s behind the stage. A name that the server does not have fails the test."""
        values = self.scrape()
        assert name in values, f"the server has no metric {name}"
        return values[name]

    def settled(self, name: str) -> float:
        """The value once the stage's last copy of it must have been made."""
        time.sleep(MIRROR_SECONDS)
        return self.metric(name)

    def wait_metric(self, name: str, wanted: float | Callable[[float], bool], seconds: float = 5.0) -> float:
        """Wait until the value is ``wanted`` (a number, or a condition) and return it; else the test fails."""
        holds = wanted if callable(wanted) else lambda value: value == wanted
        deadline = time.monotonic() + seconds
        while not holds(value := self.metric(name)):
            assert time.monotonic() < deadline, f"{name} is {value:g} after {seconds:g} s"
            time.sleep(0.02)
        return value

    def wait_idle(self, seconds: float = 10.0) -> None:
        """Wait until no slot, no place in the queue and no vocoder stream is taken; else the test fails."""
        deadline = time.monotonic() + seconds
        while taken := {name: value for name in GAUGES if (value := self.metric(name))}:
            assert time.monotonic() < deadline, f"still taken after {seconds:g} s: {taken}"
            time.sleep(0.05)

    def stop(self, within: float = 8.0) -> list[str]:
        """SIGTERM; fails the test unless serve.py exits with 0 in time and leaves nothing. Returns what it printed."""
        began = time.monotonic()
        self.serve.process.send_signal(signal.SIGTERM)
        code, took = self.serve.wait_ended(30), time.monotonic() - began
        assert code == 0, f"serve.py ended with {code}\n{self.serve.out}\n{self.serve.err}"
        assert took < within, f"SIGTERM took {took:.1f} s, the limit is {within:g} s\n{self._log_of_the_end()}"
        assert leftovers(self.state) == []
        return self.serve.out.strip().splitlines()

    def end(self, within: float = 5.0) -> None:
        """As ``stop``, and no request may be left inside."""
        last = self.stop(within)[-1]
        # "still counted a request" or "with requests still running" would stand here instead.
        assert re.fullmatch(r"stopped \d+\.\d s", last), f"{last}\n{self._log_of_the_end()}"

    def kill(self) -> None:
        """For a server that a failed test left behind: gone, whatever its state."""
        self.serve.__exit__()

    def _log_of_the_end(self) -> str:
        return self.serve.err.rpartition("Signal (15) received")[2]


@contextmanager
def live_server(folder: Path, *arguments: str) -> Iterator[LiveServer]:
    """A server for several tests, with more arguments of serve.py. After them it must be idle and end cleanly."""
    live = LiveServer(folder, *arguments)
    try:
        yield live
        live.wait_idle()
        live.end()
    finally:
        live.kill()
