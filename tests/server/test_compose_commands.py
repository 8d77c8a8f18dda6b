"""The commands of docker-compose.yml as they stand, outside a container, with the Triton inside nvidia-pytriton."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backends.launch.pipelines import pipeline_of
from backends.launch.ports import pick_ports
from backends.launch.process import stage_processes
from tests.compose import healthcheck, load, seconds, words
from tests.conftest import ROOT
from tests.server.dummies import leftovers, wait_until

#: How often serve.py looks at its stages, and what killing the rest takes, on a busy machine.
NOTICE_SECONDS = 10
#: Folders that are read-only in a container.
READ_ONLY = ("backends", "client", "model_repository", "ensemble", "checkpoints")


class Container:
    """What Compose would run for a service: its command in its working directory, and its healthcheck beside it."""

    def __init__(self, name: str, folder: Path, **variables: str) -> None:
        ports = pick_ports("0.0.0.0", {"http": 0, "grpc": 0, "metrics": 0})
        self.metrics = ports["metrics"]
        named = {f"{service.upper()}_PORT": str(port) for service, port in ports.items()}
        self.service: dict[str, Any] = load({**variables, **named})["services"][name]
        self._environment = {
            **os.environ,
            **self.service["environment"],
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # `python` is the image's
        }
        self._log = folder / "log.txt"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                words(self.service["command"]), cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    def healthy(self) -> bool:
        """One run of the healthcheck."""
        limit = seconds(self.service["healthcheck"]["timeout"])
        check = subprocess.run(
            healthcheck(self.service), cwd=ROOT, env=self._environment, timeout=limit, capture_output=True, check=False
        )
        return check.returncode == 0

    def wait_serving(self) -> dict[str, Any]:
        """The processes, under the names of serve.py's ready file."""
        limit = seconds(self.service["healthcheck"]["start_period"])
        assert wait_until(lambda: "serving on" in self.log or self.process.poll() is not None, limit), self.log
        assert self.process.poll() is None, self.log
        (triton,) = [pid for pid in _children(self.process.pid) if stage_processes(pid)]
        stages = {stage: pid for pid, stage in stage_processes(triton).items()}
        return {"pid": self.process.pid, "triton_pid": triton, "stages": stages}

    def end(self) -> None:
        """For a server that a failed test left behind."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def running(name: str, folder: Path, **variables: str) -> Iterator[Container]:
    container = Container(name, folder, **variables)
    try:
        yield container
    finally:
        container.end()


def test_a_dead_stage_ends_the_container_so_that_it_is_started_again(tmp_path):
    began = time.time()
    with running("voxstage-cpu", tmp_path) as container:
        assert not container.healthy()
        state = container.wait_serving()
        assert sorted(state["stages"]) == sorted(
            path.name for path in (ROOT / "model_repository").iterdir() if pipeline_of(path.name) != "asr"
        )
        assert container.healthy(), container.log
        _check_exported_metrics(container.metrics)
        os.kill(state["stages"]["tts_decoder"], signal.SIGKILL)
        assert container.process.wait(NOTICE_SECONDS) == 1
        assert "the process of the stage tts_decoder was killed by SIGKILL" in container.log
        assert not container.healthy()
    assert leftovers(state) == []
    assert [path for path in _written_since(began) if "__pycache__" not in path.parts] == []


def test_a_stopped_container_ends_cleanly_within_its_grace_period(tmp_path):
    """The command of the GPU, told by its variable to do without one."""
    with running("voxstage", tmp_path, DEVICE="cpu") as container:
        state = container.wait_serving()
        assert container.healthy(), container.log
        container.process.send_signal(signal.SIGTERM)
        assert container.process.wait(seconds(container.service["stop_grace_period"])) == 0, container.log
    assert re.search(r"stopped \d+\.\d s$", container.log.strip()), container.log
    assert leftovers(state) == []


def _check_exported_metrics(port: int) -> None:
    """Dashboard and alerts ask for names that this server's metrics route really has, but for those of the other
    pipeline, which it does not serve.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        exported = set(re.findall(r"^(voxstage_\w+)", answer.read().decode(), re.MULTILINE))
    for path in ("deploy/grafana/dashboards/voxstage.json", "deploy/prometheus/alerts.yml"):
        named = set(re.findall(r"\bvoxstage_\w+", (ROOT / path).read_text(encoding="utf-8")))
        missing = {name for name in named - exported if not name.startswith("voxstage_asr_")}
        assert not missing, sorted(missing)


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def _written_since(began: float) -> list[Path]:
    files = [path for folder in READ_ONLY for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in files if path.stat().st_mtime > began]
