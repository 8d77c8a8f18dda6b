"""``build_engines.py``: refusals, when it builds and when not, what a failure leaves; real engines of TensorRT-RTX."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from backends.encoder import build
from backends.encoder.builder import BuildOrder, EngineBuilder, load_runtime
from backends.encoder.export import export_encoder
from backends.encoder.passport import Passport
from backends.encoder.runtime import OnnxEncoder
from backends.errors import Internal, InvalidArgument
from build_engines import run
from tests.conftest import ROOT
from tests.unit.tiny_codec import write_checkpoint

torch.set_num_threads(1)
CAPABILITIES = ("SM86", "SM120")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, voice: Path) -> Path:
    """A tiny one: engines of it take two seconds."""
    return write_checkpoint(tmp_path_factory.mktemp("engines") / "checkpoint", voice)


@pytest.fixture
def asks(checkpoint: Path, tmp_path: Path) -> list[str]:
    return ["--checkpoint", str(checkpoint), "--max-seconds", "4", "--out", str(tmp_path)]


@pytest.fixture(scope="module")
def built(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with an ONNX engine of it."""
    out = tmp_path_factory.mktemp("built")
    assert run(["--checkpoint", str(checkpoint), "--max-seconds", "4", "--runtime", "onnx", "--out", str(out)]) == 0
    return out


def in_place(folder: Path, suffix: str = "onnx") -> tuple[Path, Path]:
    version = folder / "audio_encoder" / "1"
    names = {"onnx": ("model.onnx", "engine.onnx.json"), "rtx": ("model.rtx.plan", "engine.rtx.json")}[suffix]
    return version / names[0], version / names[1]


def rtx() -> Any:
    """The module of TensorRT-RTX; where its wheels are not installed the test is skipped, with a word."""
    try:
        return load_runtime("tensorrt_rtx")
    except InvalidArgument as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stage", "asr_encoder"], "INVALID_ARG stage: 'asr_encoder' cannot be built: it runs in Python"),
        (["--stage", "vocoder"], "INVALID_ARG stage: 'vocoder' cannot be built: tts_vocoder keeps the state"),
        (["--stage", "tts_decoder"], "INVALID_ARG stage: 'tts_decoder' is not a stage with an engine"),
        (["--runtime", "openvino"], "invalid choice: 'openvino'"),
        (["--precision", "int8"], "invalid choice: 'int8'"),
        (["--runtime", "onnx", "--precision", "fp16"], "INVALID_ARG precision: fp16 is not written to ONNX"),
        (
            ["--runtime", "onnx", "--compute-capability", "SM89"],
            "INVALID_ARG compute-capability: means nothing to onnx",
        ),
        (["--compute-capability", "SM89"], "means nothing to tensorrt"),
        (["--runtime", "tensorrt_rtx"], "INVALID_ARG compute-capability: is missing"),
        (["--runtime", "tensorrt_rtx", "--compute-capability", "8.9"], "'8.9' is not of the form SM89"),
        (["--max-seconds", "0"], "'0' is not a number of seconds from 0.08 to 600"),
        (["--max-seconds", "nan"], "'nan' is not a number of seconds"),
        (["--max-batch", "0"], "'0' is not a whole number from 1 to 256"),
        (["--checkpoint", "/nowhere"], "INVALID_CHECKPOINT checkpoint: the directory /nowhere does not exist"),
        (["--surprise"], "unrecognized arguments: --surprise"),
    ],
)
def test_refusals_are_one_sentence_and_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*arguments, "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("build_engines.py: ") and words in printed and printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_runtime_that_is_not_installed_is_named(
    asks: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # as where it is not installed
    assert run(asks) == 2
    assert "INVALID_ARG runtime: tensorrt is not installed here (pip install tensorrt)" in capsys.readouterr().err


def test_builds_only_what_does_not_fit(asks: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asks += ["--runtime", "onnx"]
    engine, passport = in_place(tmp_path)
    assert run([*asks, "--explain"]) == 1
    assert "does not exist" in capsys.readouterr().out and not engine.exists()
    assert run(asks) == 0
    assert "100.0000% of the codes equal torch's" in capsys.readouterr().out
    made = engine.stat().st_mtime_ns
    assert run(asks) == 0 and run([*asks, "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "not built again" in printed and '"checkpoint_sha256"' in printed and engine.stat().st_mtime_ns == made

    assert run([*asks, "--max-batch", "16"]) == 0  # more than it was built for
    assert Passport.read(passport).maximum == (16, 50 * 16) and engine.stat().st_mtime_ns > made
    made = engine.stat().st_mtime_ns
    assert run([*asks, "--max-batch", "4"]) == 0 and engine.stat().st_mtime_ns == made  # less: it fits

    engine.write_bytes(engine.read_bytes()[:-1])
    capsys.readouterr()
    assert run([*asks, "--explain"]) == 1
    assert "engine_sha256" in capsys.readouterr().out
    assert run(asks) == 0 and run([*asks, "--explain"]) == 0


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("runtime_version", "0.1"),
        ("precision", "fp16"),
        ("onnx_sha256", "0" * 64),
        ("checkpoint_sha256", "0" * 64),
        ("engine_sha256", "0" * 64),
        ("codebooks", 99),
        ("gpu", "NVIDIA Imaginary"),
        ("compute_capability", "1.0"),
        ("minimum", [1, 32]),
        ("maximum", [1, 16]),
    ],
)
def test_each_field_of_the_passport_decides(
    field: str, wrong: Any, built: Path, asks: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asks += ["--runtime", "onnx"]
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    _, passport = in_place(tmp_path)
    good = json.loads(passport.read_text())
    passport.write_text(json.dumps(good | {field: wrong}))
    capsys.readouterr()
    assert run([*asks, "--explain"]) == 1
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith(f"would be built: {field} is {wrong!r} in the engine's passport and ")
    assert verdict.endswith(" here")


def test_a_failed_build_leaves_the_old_engine(
    asks: list[str], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks += ["--runtime", "onnx"]
    assert run(asks) == 0
    files = in_place(tmp_path)
    old = [path.read_bytes() for path in files]

    def fail(*arguments: object) -> None:
        raise Internal("the GPU fell off the bus")

    monkeypatch.setattr(build, "compare", fail)
    assert run([*asks, "--max-batch", "16"]) == 1
    assert [path.read_bytes() for path in files] == old
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["engine.onnx.json", "model.onnx"]
    assert run(asks) == 0  # and it still fits


def test_an_engine_without_its_passport_is_built_again(
    asks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asks += ["--runtime", "onnx"]
    assert run(asks) == 0
    engine, passport = in_place(tmp_path)
    passport.unlink()
    capsys.readouterr()
    assert run([*asks, "--explain"]) == 1 and "engine.onnx.json does not exist" in capsys.readouterr().out
    assert run(asks) == 0 and passport.exists()
    assert OnnxEncoder(engine, 1).encode_batch(np.zeros((2, 32), np.float32)).shape == (2, 2, 3)


def test_rtx_engines_for_two_compute_capabilities(
    asks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rtx()
    plans = []
    for name in CAPABILITIES:
        asked = [*asks, "--runtime", "tensorrt_rtx", "--compute-capability", name]
        assert run(asked) == 0 and run([*asked, "--explain"]) == 0
        engine, path = in_place(tmp_path, "rtx")
        passport = Passport.read(path)
        assert passport.compute_capability == f"{name[2:-1]}.{name[-1]}" and passport.gpu is None
        assert passport.agreement is None and passport.agreement_missing_because
        plans.append(engine.read_bytes())
    assert plans[0] != plans[1]
    # The other one no longer fits, and is named with both values.
    capsys.readouterr()
    assert run([*asks, "--runtime", "tensorrt_rtx", "--compute-capability", CAPABILITIES[0], "--explain"]) == 1
    assert "compute_capability is '12.0' in the engine's passport and '8.6' here" in capsys.readouterr().out


def test_rtx_takes_the_graph_of_the_voice(voice: Path, tmp_path: Path) -> None:
    trt = rtx()
    lines: list[str] = []
    order = BuildOrder("fp32", (1, 1920), (1, 240_000), (8, 1_440_000), CAPABILITIES[:1])
    plan = EngineBuilder(trt, lines.append).build(export_encoder(voice / "codec", 750), order, tmp_path / "timing")
    assert len(plan) > 10_000_000


def test_rtx_refuses_in_sentences(asks: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trt = rtx()
    asks += ["--runtime", "tensorrt_rtx"]
    for more, words in (
        (["--compute-capability", "SM90"], "compute-capability: SM90 is not one that tensorrt_rtx"),
        (["--compute-capability", "SM89", "--precision", "fp16"], "precision: fp16 is not built by tensorrt_rtx"),
    ):
        assert run([*asks, *more]) == 2
        assert words in capsys.readouterr().err
    broken = onnx.load_model_from_string(export_encoder(Path(asks[1]) / "codec", 10))
    broken.graph.node[-1].op_type = "NoSuchOperator"
    with pytest.raises(Internal, match=r"cannot read the ONNX model: .*NoSuchOperator"):
        EngineBuilder(trt, print).build(
            broken.SerializeToString(), BuildOrder("fp32", (1, 16), (1, 16), (1, 160), ("SM89",)), tmp_path / "timing"
        )
    assert not (tmp_path / "timing").exists()


def test_the_script_itself(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "build_engines.py"), "--stage", "vocoder"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ), cwd=tmp_path)
    assert ended.returncode == 2 and ended.stderr.startswith("build_engines.py: INVALID_ARG stage") and not ended.stdout
