"""Small model repositories and a running ``serve.py``, for tests of the launcher with a real Triton."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: Answers every request with its text. ``init`` and ``execute`` are filled in.
_MODEL = """
import os, time
import numpy as np
import triton_python_backend_utils as pb
import backends.errors  # the repository root is importable


class TritonPythonModel:
    def initialize(self, args):
        {init}

    def execute(self, requests):
        for request in requests:
            {execute}
            text = pb.get_input_tensor_by_name(request, "text").as_numpy()
            final = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            out = [pb.Tensor("error", np.array([b""], dtype=np.object_)), pb.Tensor("echo", text)]
            request.get_response_sender().send(pb.InferenceResponse(out), flags=final)
"""
_CONFIG = """
name: "{name}"
backend: "python"
input [ {{ name: "text" data_type: TYPE_STRING dims: [ -1 ] }} ]
output [
  {{ name: "error" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "echo" data_type: TYPE_STRING dims: [ -1 ] }}
]
model_transaction_policy {{ decoupled: true }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "size" value {{ string_value: "4" }} }}
"""


def add_stage(repository: Path, name: str, init: str = "pass", execute: str = "pass") -> None:
    """A decoupled Python stage: ``text`` in, ``echo`` and ``error`` out. ``init`` and ``execute`` are lines of code."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(_CONFIG.format(name=name))
    (repository / name / "1" / "model.py").write_text(_MODEL.format(init=init, execute=execute))


class Serve:
    """``serve.py`` on free ports. A context manager: leaving it ends the process, whatever the test did to it."""

    def __init__(self, folder: Path, *arguments: str, repository: Path | None = None) -> None:
        self.ready_file = folder / "ready.json"
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        command = [sys.executable, str(ROOT / "serve.py"), "--ready-file", str(self.ready_file)]
        for service in ("http", "grpc", "metrics"):
            command += [f"--{service}-port", "0"]
        if repository is not None:
            command += ["--model-repository", str(repository)]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*command, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder
            )

    def __enter__(self) -> Serve:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_serving(self, seconds: float = 60) -> dict[str, Any]:
        """The content of the ready file. Fails the test when the server ended or took too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.ready_file.exists():
                return dict(json.loads(self.ready_file.read_text()))
            assert self.process.poll() is None, f"serve.py ended with {self.process.returncode}\n{self.out}\n{self.err}"
            time.sleep(0.05)
        raise AssertionError(f"not serving after {seconds} s\n{self.out}\n{self.err}")

    def wait_ended(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)


def alive(pid: int) -> bool:
    """True if there is such a process and it is no zombie."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def leftovers(state: dict[str, Any]) -> list[str]:
    """Processes and shared memory of a server that has ended, by its ready file."""
    pids = [state["triton_pid"], *state["stages"].values()]
    regions = [name for name in os.listdir("/dev/shm") if name.startswith(f"voxstage-{state['pid']}-")]
    return [str(pid) for pid in pids if alive(pid)] + regions


def wait_until(condition: Any, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
