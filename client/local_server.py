"""A server of this checkout for as long as a ``with`` block: ``make demo`` and ``make bench`` use it.

Needs serve.py beside client/; the rest of client/ does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from client.errors import SpeechError

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 40.0  # above Triton's own 30 s


class LocalServerError(SpeechError):
    """The server could not be started, or did not end as it should."""

    code = "LOCAL_SERVER"


@contextlib.contextmanager
def running_server(serve_args: Sequence[str], stdout: int | None = None) -> Iterator[dict[str, int]]:
    """serve.py on free ports. Yields the content of its ready file: http, grpc, metrics and pid.

    serve_args  more arguments of serve.py
    stdout      file descriptor for what serve.py prints; None: ours

    Inside the block SIGTERM raises KeyboardInterrupt, as Ctrl-C does: it must take the way through the finally
    blocks, or the server would be left running. Raises LocalServerError; the server is gone when this ends.
    """
    serve = ROOT / "serve.py"
    if not serve.is_file():
        raise LocalServerError(f"{serve} is not there. Run this from a whole checkout of the repository")
    with _terminate_interrupts(), tempfile.TemporaryDirectory(prefix="voxstage-") as folder:
        ready = Path(folder) / "ready.json"
        ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
        command = [sys.executable, str(serve), *ports, "--ready-file", str(ready), *serve_args]
        # A session of its own: Ctrl-C reaches only us, we stop the server in order, and a stuck one ends as a group.
        server = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=stdout)
        try:
            yield _wait_ready(server, ready)
        except BaseException:
            _stop(server)
            raise
        code = _stop(server)
        if code != 0:
            raise LocalServerError(f"The server did not stop cleanly (exit code {code}). Its messages above say why")


@contextlib.contextmanager
def _terminate_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_ready(server: subprocess.Popen[bytes], ready: Path) -> dict[str, int]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise LocalServerError(f"The server ended with exit code {server.returncode} before it was ready")
        if ready.exists():
            # A file that is being written is not JSON yet.
            with contextlib.suppress(ValueError):
                return dict(json.loads(ready.read_text()))
        time.sleep(0.05)
    raise LocalServerError(f"The server was not ready within {START_TIMEOUT_S:.0f} s")


def _stop(server: subprocess.Popen[bytes]) -> int:
    """SIGTERM and wait; what is left of the group after that is killed. Returns the exit code."""
    # From here on nothing may interrupt: a second Ctrl-C would leave the server behind.
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        return server.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
