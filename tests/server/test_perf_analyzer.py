"""NVIDIA's perf_analyzer runs against the server with the command of the README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.dummies import ROOT
from tests.server.live import LiveServer

#: As the README gives it, from the repository root; it adds the port where it is not 8001.
COMMAND = (
    "-m tts -i grpc --streaming --async --input-data benchmarks/perf_analyzer_input.json "
    "--shape text:1 --shape seed:1 --shape max_frames:1"
)


@pytest.fixture(scope="module")
def perf_analyzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program: the one already fetched, or fetched now into a folder of this test run."""
    fetched = ROOT / ".cache" / "perf_analyzer" / "perf_analyzer"
    if fetched.exists():
        return fetched
    if shutil.which("bash") is None:
        pytest.skip("tools/perf_analyzer.sh needs bash")
    folder = tmp_path_factory.mktemp("perf_analyzer")
    environment = {**os.environ, "PYTHON": sys.executable}
    script = [str(ROOT / "tools" / "perf_analyzer.sh"), str(folder)]
    try:
        done = subprocess.run(script, capture_output=True, text=True, env=environment, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip("tools/perf_analyzer.sh: the wheel with perf_analyzer was not fetched within 240 s")
    if done.returncode and re.search(r"No matching distribution|Connection|Temporary failure|timed out", done.stderr):
        pytest.skip(
            f"tools/perf_analyzer.sh: the wheel with perf_analyzer cannot be fetched: {done.stderr.strip()[-200:]}"
        )
    assert done.returncode == 0, done.stderr
    return folder / "perf_analyzer"


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_perf_analyzer(server: LiveServer, perf_analyzer: Path, concurrency: int) -> None:
    requests = max(6, 2 * concurrency)
    command = [
        *(str(perf_analyzer), "-u", server.url, *COMMAND.split()),
        *("--concurrency-range", str(concurrency), "--request-count", str(requests)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"Throughput: ([\d.]+) infer/sec", done.stdout)
    assert found, done.stdout
    assert float(found[1]) > 0
    print("\n" + "\n".join(line for line in done.stdout.splitlines() if "hroughput" in line or "Concurrency:" in line))
    server.wait_idle()
