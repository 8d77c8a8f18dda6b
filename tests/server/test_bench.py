"""``client bench`` against the real server: both loops, the JSON, what is refused, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.server.live import LiveServer

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--max-frames", "12", "--first-chunk-frames", "4", "--chunk-frames", "4")


def command(server: LiveServer, *arguments: str) -> list[str]:
    address = ("--url", server.url, "--metrics-url", f"127.0.0.1:{server.metrics}")
    return [sys.executable, "-m", "client", "bench", "tts", *address, *SHORT, *arguments]


def bench(server: LiveServer, file: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The JSON and the tables of a measurement that must succeed."""
    done = subprocess.run(
        command(server, "--json", str(file), *arguments), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines()[3:])) <= 120  # after the command line
    return json.loads(file.read_text()), done.stdout


def test_closed_loop(server: LiveServer, tmp_path: Path) -> None:
    found, tables = bench(server, tmp_path / "found.json", "--concurrency", "1,2", "--requests", "3", "--records")
    assert [level["label"] for level in found["levels"]] == ["c=1", "c=2"]
    for level in found["levels"]:
        assert level["label"] in tables
        assert (level["started"], level["finished"], level["lost"], level["errors"]) == (3, 3, 0, {})
        assert level["finish_reasons"].keys() <= {"stop", "length"}
        assert level["first_chunk"]["n"] == 3
        assert level["first_chunk"]["p99"] is None
        assert level["requests_per_s"] > 0
        assert 0 < level["client_cpu"] < 1
        # The counters are those of the level alone: its warm-up is not in them.
        assert level["metrics"]["voxstage_decoder_requests"] == 3
        frames = sum(sum(samples for _, samples in record["chunks"]) for record in level["records"]) / 1920
        assert level["metrics"]["voxstage_decoder_frames"] == frames
    assert found["levels"][0]["in_flight"] <= 1.0
    assert found["server"]["model"]["name"] == "tts"
    assert found["machine"]["cpu"]


def test_open_loop(server: LiveServer, tmp_path: Path) -> None:
    arguments = ("--rate", "2", "--duration", "3", "--arrivals", "constant", "--warmup", "1", "--records")
    found, tables = bench(server, tmp_path / "found.json", *arguments)
    (level,) = found["levels"]
    assert (level["offered"], level["window"], level["started"], level["finished"]) == (2, 3, 6, 6)
    assert [round(record["due"], 6) for record in sorted(level["records"], key=lambda r: r["index"])] == [
        0.0, 0.5, 1.0, 1.5, 2.0, 2.5,
    ]  # fmt: skip
    assert all(record["sent"] >= record["due"] for record in level["records"])
    assert "2/s" in tables


def test_max_outstanding_skips_and_counts(server: LiveServer, tmp_path: Path) -> None:
    arguments = ("--rate", "50", "--requests", "10", "--arrivals", "constant", "--max-outstanding", "1")
    found, tables = bench(server, tmp_path / "found.json", *arguments)
    (level,) = found["levels"]
    assert level["skipped"] > 0
    assert level["started"] + level["skipped"] == 10
    assert f"{level['skipped']} arrivals were skipped" in tables


def test_refusals_are_counted_by_kind(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    arguments = ("--concurrency", "1", "--requests", "2", "--temperature", "-1", "--json", str(file))
    done = subprocess.run(command(server, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1  # no request came to its end
    (level,) = json.loads(file.read_text())["levels"]
    assert (level["finished"], level["lost"]) == (0, 0)
    assert level["errors"]["INVALID_ARG"]["n"] == 2
    assert "INVALID_ARG" in done.stdout


def test_metrics_at_another_port_are_asked_for(server: LiveServer, tmp_path: Path) -> None:
    """HTTP answers there, but has no metrics, as where --url alone names a server on other ports."""
    arguments = ("--concurrency", "1", "--requests", "1", "--warmup", "0", "--metrics-url", f"127.0.0.1:{server.http}")
    found, tables = bench(server, tmp_path / "found.json", *arguments)
    assert found["levels"][0]["metrics"] is None and found["metrics_problem"]
    last, advice = tables.splitlines()[-2:]
    assert last == f"Server counters: {found['metrics_problem']}"
    assert advice.startswith("--metrics-url HOST:PORT says where the server's metrics are")


def test_metrics_of_a_port_that_speaks_no_http_are_a_sentence(server: LiveServer) -> None:
    address = f"127.0.0.1:{server.grpc}"
    arguments = ("--concurrency", "1", "--requests", "1", "--warmup", "0", "--metrics-url", address)
    done = subprocess.run(command(server, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "(what answers there does not speak HTTP)" in done.stdout
    assert "--metrics-url" in done.stdout


def test_ctrl_c_prints_what_there_is(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    arguments = ("--concurrency", "2", "--duration", "60", "--warmup", "0", "--json", str(file))
    process = subprocess.Popen(
        command(server, *arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        begin = server.metric("voxstage_decoder_finished")
        server.wait_metric("voxstage_decoder_finished", lambda value: value >= begin + 3, 30)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, err
    found = json.loads(file.read_text())
    assert found["interrupted"]
    (level,) = found["levels"]
    assert level["finished"] >= 2
    assert level["window"] < 60
    assert "Interrupted" in err
    assert "c=2" in out
