"""A result of benchmarks/ says when and with which options it was made, and not where it was written."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import torch

from benchmarks.sitting import sitting
from benchmarks.skinny import save


def test_a_sitting_names_date_options_and_machine() -> None:
    about = sitting(argparse.Namespace(device="cpu", requests=12, concurrency=(1, 16), json=Path("somewhere.json")))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", about["date"])
    assert about["options"] == {"concurrency": "(1, 16)", "device": "cpu", "requests": "12"}
    assert about["torch"] == torch.__version__ and about["device"]
    assert "somewhere" not in json.dumps(about)


def test_the_products_are_saved_with_it(tmp_path: Path) -> None:
    path = tmp_path / "skinny.json"
    save(argparse.Namespace(json=path, only="qkv"), 4.0, [{"name": "qkv"}])
    saved = json.loads(path.read_text())
    assert saved["lines"] == [{"name": "qkv"}] and saved["copy_bytes_per_us"] == 4.0
    assert saved["options"] == {"only": "qkv"} and {"date", "device", "torch"} <= saved.keys()
    save(argparse.Namespace(json=None, only=None), 4.0, [])
