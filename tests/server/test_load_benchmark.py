"""The benchmarks of load against servers that they start, as briefly as they can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.dummies import ROOT


@pytest.mark.parametrize("side", ["unseen", "cached"])
def test_the_load_benchmark_measures_and_leaves_nothing(side: str, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.asr_load", "--checkpoint", "benchmarks/configs/qwen3_asr_toy"]
    command += ["--concurrency", "1,6", "--clients", "2", "--seconds", "1", "--warm", "0.5", "--sides", side]
    command += ["--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    levels = json.loads(found.read_text())["sides"][side]["levels"]
    assert [level["concurrency"] for level in levels] == [1, 6]
    for level in levels:
        assert level["requests"] and not level["errors"] and level["lost"] == 0
        assert set(level["cpu_ms_per_request"]) == {"tritonserver", "asr_prompt", "asr_encoder", "asr_decoder"}
        assert None not in level["stages_s"].values() and level["responses_per_request"] >= 2
        hits = level["counters"]["voxstage_asr_cache_hits"] + level["counters"]["voxstage_asr_cache_merged"]
        assert bool(hits) == (side == "cached")
    assert "RTFx" in done.stdout and side in done.stdout


def test_the_benchmark_of_what_triton_costs_measures_both_sides(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.triton_overhead",
        "--checkpoint",
        "benchmarks/configs/moss_tts_local_toy",
    ]
    command += ["--concurrency", "1,3", "--requests", "2", "--frames", "30", "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(found.read_text())
    for side in ("engine", "triton"):
        assert [level["concurrency"] for level in result[side]] == [1, 3]
        assert all(level["frames_per_s"] > 0 and level["first_ms"] > 0 for level in result[side])
    assert set(result["triton"][0]["cpu_ms_per_request"]) == {"tritonserver", "tts_decoder"}
    assert "processor ms a request: tritonserver" in done.stdout
