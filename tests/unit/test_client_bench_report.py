"""Tables, counters, texts, timelines and the command line of the bench."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from client.__main__ import main
from client.bench import speech_tables
from client.bench.level import Tally
from client.bench.load import Load
from client.bench.machine import describe
from client.bench.metrics import metrics_address, parse
from client.bench.progress import LoadProgress
from client.bench.report import report, warnings
from client.bench.speech import summarise
from client.bench.table import fixed, render, whole
from client.bench.texts import everyday, read_texts
from client.errors import InvalidArgument, StreamBroken
from client.response import read_timeline
from tests.unit.test_client_bench_numbers import big_level, failure, record

METRICS = """\
# HELP voxstage_decoder_steps Decode steps run
# TYPE voxstage_decoder_steps counter
voxstage_decoder_steps{model="tts_decoder",version="1"} %d
# TYPE voxstage_decoder_slots gauge
voxstage_decoder_slots{model="tts_decoder",version="1"} 3
# TYPE voxstage_gap_seconds histogram
voxstage_gap_seconds_count{model="a"} 4
voxstage_gap_seconds_count{model="b"} 5
voxstage_gap_seconds_sum{model="a"} 0.5
voxstage_gap_seconds_bucket{model="a",le="0.1"} 2
voxstage_gap_seconds_bucket{model="b",le="0.1"} 1
voxstage_gap_seconds_bucket{model="a",le="+Inf"} 4
# TYPE nv_inference_count counter
nv_inference_count{model="tts"} 9
"""


def test_render_aligns() -> None:
    table = render([["", "both", ""], ["load", "a", "b"]], [["c=1", "10", "2"], ["c=16", "1", "22222"]])
    assert table.splitlines() == [
        "      ---both--",
        "load   a      b",
        "c=1   10      2",
        "c=16   1  22222",
    ]


def test_a_group_wider_than_its_columns_widens_them() -> None:
    table = render([["", "a long name", ""], ["x", "a", "b"]], [["1", "2", "3"]])
    assert table.splitlines() == ["   a long name", "x  a         b", "1  2         3"]


def test_render_refuses_a_short_row() -> None:
    with pytest.raises(ValueError, match="1 cells, the header 2"):
        render([["a", "b"]], [["1"]])


def test_cells() -> None:
    assert (fixed(None), fixed(0.1234, 1, 100), whole(None), whole(3.0)) == ("-", "12.3", "-", "3")


def test_every_table_fits_120_columns() -> None:
    metrics = parse(METRICS % 123456).values
    names = (
        "frames",
        "step_seconds",
        "prefill_seconds",
        "overruns",
        "prefix_hits",
        "retracted",
        "graph_replays",
        "shed",
    )
    metrics |= {f"voxstage_decoder_{name}": 123456.0 for name in names}
    metrics |= {"voxstage_vocoder_steps": 123456.0, "voxstage_vocoder_step_seconds": 9876.5}
    text = report([dataclasses.replace(big_level(), metrics=metrics)], speech_tables, timeline=True)
    assert max(map(len, text.splitlines())) <= 120
    for title in ("Latency", "Playback", "Warning: 12.5/s: the client used 90 %", "Errors", "Stages", "Server"):
        assert title in text
    assert "UNAVAILABLE" in text
    stages = text[text.index("Stages") :].splitlines()[2].split()
    assert stages[:3] == ["12.5/s", "12000", "1234.5"]


def test_what_is_missing_is_said_in_a_line() -> None:
    level = summarise(Tally("c=1", started=1), [record()])
    text = report([level], speech_tables, timeline=False, metrics_problem="http://x/metrics could not be read (no).")
    assert "no output 'timeline'" in text
    assert "http://x/metrics could not be read" in text and "\n--metrics-url HOST:PORT says where" in text
    assert "Errors" not in text
    assert "brought a timeline" in report([level], speech_tables, timeline=True)
    assert report([], speech_tables, timeline=False) == "No level was measured."


def test_warnings() -> None:
    level = summarise(Tally("c=1", started=3, skipped=2, client_cpu=0.81), [record()])
    assert [line.split(": ")[1].split(" ")[0] for line in warnings(level)] == ["the", "2", "interrupted;"]
    assert warnings(summarise(Tally("c=1", started=1, client_cpu=0.8), [record()])) == []


def test_a_level_is_json() -> None:
    level = summarise(Tally("c=1", started=2), [record(), failure("BROKEN")])
    found = json.loads(json.dumps(level.as_dict(), allow_nan=False))
    assert found["underrun"]["shares"] == {"0 ms": 0, "50 ms": 0, "100 ms": 0, "200 ms": 0}
    assert found["lost"] == 1
    for one in (record(timeline={"built": 0.1}), failure("BROKEN")):
        json.dumps(one.as_dict(), allow_nan=False)


def test_metrics_grow() -> None:
    before, after = parse(METRICS % 10), parse(METRICS % 25)
    assert after.gauges == {"voxstage_decoder_slots"}
    assert after.values["voxstage_gap_seconds_count"] == 9
    assert after.values["voxstage_gap_seconds_bucket{le=0.1}"] == 3
    grown = after.since(before)
    assert grown["voxstage_decoder_steps"] == 15
    assert "voxstage_decoder_slots" not in grown
    assert not any(name.startswith("nv_") for name in grown)


@pytest.mark.parametrize(
    ("given", "url", "address"),
    [
        (None, "somewhere:8001", "http://somewhere:8002/metrics"),
        ("127.0.0.1:9", "x:1", "http://127.0.0.1:9/metrics"),
        ("https://host/deep/path", "x:1", "https://host/deep/path"),
        ("http://host:1/", "x:1", "http://host:1/metrics"),
    ],
)
def test_metrics_address(given: str | None, url: str, address: str) -> None:
    assert metrics_address(given, url) == address


def test_texts(tmp_path: Path) -> None:
    file = tmp_path / "texts"
    file.write_bytes(b"One.\n\n  \nTwo \xff.\r\n")
    assert read_texts(file) == (b"One.", b"Two \xff.")
    assert len(everyday()) >= 10
    file.write_bytes(b"\n")
    for path in (file, tmp_path / "none"):
        with pytest.raises(InvalidArgument) as caught:
            read_texts(path)
        assert caught.value.field == "--texts"


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (None, None),
        (np.array([], dtype=np.object_), None),
        (np.array([b""], dtype=np.object_), None),
        (np.array([b"[1]"], dtype=np.object_), None),
        (np.array([b"{}"], dtype=np.object_), None),
        (np.array([b'{"built": 0.5, "queued": 1, "x": null, "y": true, "z": NaN}'], dtype=np.object_),
         {"built": 0.5, "queued": 1.0}),
    ],
)  # fmt: skip
def test_read_timeline(tensor: np.ndarray | None, expected: dict[str, float] | None) -> None:
    assert read_timeline(tensor) == expected


def test_a_broken_stream_has_no_code_of_the_server() -> None:
    assert StreamBroken("x").code == "BROKEN"
    assert StreamBroken("x", code="INTERNAL").code == "INTERNAL"


def test_progress_line() -> None:
    load = Load(mock.Mock(), mock.Mock(), [record(), failure("BROKEN")], started=5, skipped=1)
    load.start -= 2.0
    assert LoadProgress("c=4", load).line() == "c=4: 1 done, 1 error, 3 inside, 1 skipped, 2.0 s"


def test_machine_is_json() -> None:
    found = json.loads(json.dumps(describe()))
    assert found["cpu"]
    assert found["versions"]["numpy"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--requests", "3", "--duration", "3"], "--duration"),
        (["--max-outstanding", "3"], "--max-outstanding"),
        (["--records"], "--records"),
        (["--serve-arg=--device=cpu"], "--serve-arg"),
        (["--texts", "/no/such/file"], "--texts"),
        (["--json", "/no/such/folder/file"], "--json"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tts", "--url", "127.0.0.1:1", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "0"],
        ["--concurrency", "1,x"],
        ["--rate", "0"],
        ["--rate", "inf"],
        ["--rate", "1", "--concurrency", "1"],
        ["stt"],
    ],
)
def test_wrong_options(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", "127.0.0.1:1", "--requests", "1"]) == 1
    assert "No Triton server answers" in capsys.readouterr().err
