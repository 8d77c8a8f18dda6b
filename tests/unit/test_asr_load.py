"""The load benchmark of speech to text: what counts, what is unseen, and the checkpoint that it makes for itself."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.asr.family import load_family
from benchmarks.asr_clients import RATE, Part, SampleWorkload, spoken
from benchmarks.asr_load import report, summarise, verdict
from benchmarks.made_checkpoint import has_weights, make_checkpoint
from benchmarks.usage import cpu_seconds
from client.bench.clips import Clip
from client.bench.transcripts import TranscriptRecord
from client.request import TranscriptionRequest
from tests.conftest import ROOT

TIMELINE = {"audio": 0.01, "built": 0.02, "encoded": 0.05, "queued": 0.06, "last_chunk": 0.09}


def record(ended: float, took: float = 0.1, kind: str = "OK", message: str = "") -> TranscriptRecord:
    sent, ok = ended - took, kind == "OK"
    return TranscriptRecord(
        0, sent, sent, ended, kind, message, "length" if ok else "", TIMELINE if ok else None,
        "0", 4.7, ((ended - 0.05, 3), (ended, 4)) if ok else (),
    )  # fmt: skip


def test_what_ends_in_the_window_counts_and_errors_count_wherever_they_are() -> None:
    good = [record(at, 0.2) for at in (9.9, 10.0, 11.0, 11.9, 12.0)]  # 10 <= end < 12
    bad = [record(9.0, kind="UNAVAILABLE", message="full"), record(13.0, kind="TIMEOUT"), record(11.0, kind="INTERNAL")]
    level = summarise(4, [Part([*good, *bad], 0.5), Part([record(11.5, 0.4)], 0.25)], 10.0, 12.0, 4.7)
    assert (level["requests"], level["requests_per_s"], level["rtfx"]) == (4, 2.0, 9.4)
    assert level["latency_s"]["mean"] == pytest.approx((3 * 0.2 + 0.4) / 4)
    assert (level["shed"], level["lost"], level["failed"], level["sent"]) == (1, 1, 1, 9)
    assert level["messages"] == ["", "full"] and level["finish_reasons"] == {"length": 4}
    assert level["stages_s"]["encode"] == pytest.approx(0.03) and level["stages_s"]["total"] == pytest.approx(0.25)
    assert level["responses_per_request"] == 2 and level["client_cores"] == [0.5, 0.25]
    assert json.loads(json.dumps(level)) == level
    level |= {"gpu_busy_percent": None, "cpu_ms_per_request": {"asr_prompt": 1.5}, "cores": {"asr_prompt": 0.75}}
    tables = report("unseen", [level])
    assert "1.50   0.75    0.50    -" in tables and "decode tail" in tables


def test_the_curve_falls_by_its_largest_step_down() -> None:
    def level(concurrency: int, rate: float, p95: float | None) -> dict[str, Any]:
        return {"concurrency": concurrency, "requests_per_s": rate, "latency_s": {"p95": p95}}

    found = verdict([level(1, 10, 0.1), level(16, 100, 0.2), level(32, 95, 0.3), level(64, 120, 0.4)])
    assert found == {"p95_64_over_16": 2.0, "largest_fall_percent": pytest.approx(5.0)}
    assert verdict([level(16, 100, None)]) == {"p95_64_over_16": None, "largest_fall_percent": 0.0}


def test_unseen_samples_are_new_each_time_and_hardly_other_ones() -> None:
    samples = spoken(3, 0.5)
    assert all(each.shape == (RATE // 2,) and each.dtype == np.float32 for each in samples)
    assert len({each.tobytes() for each in samples}) == 3
    sent: list[np.ndarray[Any, Any]] = []

    class Client:
        def stream(self, request: TranscriptionRequest) -> None:
            assert request.sample_rate == RATE and isinstance(request.audio, np.ndarray)
            sent.append(request.audio)

    work = SampleWorkload([Clip("0", b"", 0.5)] * 3, TranscriptionRequest(b""), True, samples)
    for index in range(2000):
        work.stream(Client(), index)
    assert len({each.tobytes() for each in sent}) == 2000
    changed = np.abs(sent[1999] - samples[1999 % 3])
    assert changed[4:].max() == 0 and np.abs(sent[1999][:4]).max() < 1e-3
    sent.clear()
    dataclasses.replace(work, unseen=False).stream(Client(), 4)
    assert sent[0] is samples[1]


@pytest.mark.parametrize("name", ["qwen3_asr_1.7b", "qwen3_asr_toy"])
def test_a_config_is_all_that_a_made_checkpoint_needs(name: str, tmp_path: Path) -> None:
    source = ROOT / "benchmarks" / "configs" / name
    assert not has_weights(source)
    family = load_family(make_checkpoint(source, tmp_path / "made"))
    words = min(json.loads((source / "config.json").read_text())["eos_token_id"])
    rows, at = family.build(61, "en", "")
    assert rows.shape == (79, 2) and at is not None and len(at) == 61, "as long as a real prompt"
    reader = family.reader("en")
    text = reader.feed(list(range(words - 30, words))) + reader.end()
    assert len(text.split()) == 30 and reader.feed([words, words + 6]) == ""


def test_cpu_seconds_of_processes_that_live() -> None:
    before = cpu_seconds({"me": os.getpid(), "nobody": 2**22 + 1})
    assert list(before) == ["me"]
    sum(range(5_000_000))
    assert cpu_seconds({"me": os.getpid()})["me"] > before["me"]
