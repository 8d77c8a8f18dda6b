"""``serve.py`` and engines: one that does not fit this machine, checkpoint or config is refused in one sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from backends.encoder.digest import checkpoint_digest
from backends.encoder.machine import Machine, installed_tensorrt
from backends.encoder.passport import FILES, TOLD, Passport
from backends.errors import CheckpointError
from backends.launch.engines import check_engines
from backends.launch.failure import LaunchError
from backends.launch.repository import find_models
from backends.launch.triton import Triton
from tests.conftest import ROOT
from tests.unit.tiny_codec import write_checkpoint

MACHINE = Machine(gpu="NVIDIA A100", compute_capability="8.0", driver="560.1", tensorrt="10.5.0")
PLAN = b"not a plan, and nobody looks inside"


class Place:
    """A model repository with one engine, a Triton that has the backend, and the check of both."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        shutil.copytree(ROOT / "model_repository" / "audio_encoder", self.repository / "audio_encoder")
        version = self.repository / "audio_encoder" / "1"
        self.plan, self.passport = (version / name for name in FILES["tensorrt"])
        self.plan.write_bytes(PLAN)
        self.write(
            Passport(
                stage="audio_encoder",
                runtime="tensorrt",
                runtime_version="10.5.0",
                gpu="NVIDIA A100",
                compute_capability="8.0",
                driver="560.1",
                precision="fp32",
                codebooks=12,
                minimum=(1, 1920),
                opt=(1, 240_000),
                maximum=(8, 1_440_000),
                onnx_sha256="0" * 64,
                checkpoint_sha256=checkpoint_digest(ROOT / "checkpoints" / "voice" / "codec"),
                engine_sha256=hashlib.sha256(PLAN).hexdigest(),
                built="2026-11-30T00:00:00+00:00",
                build_seconds=1.0,
                agreement=None,
                agreement_missing_because="a test",
            )
        )
        backends = folder / "backends"
        (backends / "python").mkdir(parents=True)
        (backends / "tensorrt").mkdir()
        self.triton = Triton(folder / "tritonserver", backends / "python", folder / "stub")

    def write(self, passport: Passport) -> None:
        self.good = passport
        self.passport.write_text(passport.to_json())

    def check(self, machine: Machine = MACHINE, checkpoint: Path | None = None) -> None:
        check_engines(find_models([self.repository], "tensorrt"), ROOT, checkpoint, self.triton, machine)

    def refusal(self, **arguments: Any) -> str:
        with pytest.raises(LaunchError) as caught:
            self.check(**arguments)
        assert caught.value.exit_code == 2
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_engine_that_fits_is_served(place: Place) -> None:
    place.check()
    assert Passport.read(place.passport) == place.good


@pytest.mark.parametrize(
    ("field", "wrong", "here"),
    [
        ("stage", "vocoder", "audio_encoder"),
        ("runtime", "tensorrt_rtx", "tensorrt"),
        ("runtime_version", "10.6.0", "10.5.0"),
        ("gpu", "NVIDIA H200", "NVIDIA A100"),
        ("compute_capability", "9.0", "8.0"),
        ("codebooks", 16, "12"),
        ("minimum", (1, 3840), "[1, 1920]"),
        ("maximum", (4, 1_440_000), "[8, 1440000]"),
        ("maximum", (8, 960_000), "[8, 1440000]"),
        ("checkpoint_sha256", "a" * 64, checkpoint_digest(ROOT / "checkpoints" / "voice" / "codec")),
        ("engine_sha256", "b" * 64, hashlib.sha256(PLAN).hexdigest()),
    ],
)
def test_each_field_is_refused_with_both_values(place: Place, field: str, wrong: Any, here: str) -> None:
    changed: dict[str, Any] = {field: wrong}
    place.write(replace(place.good, **changed))
    sentence = place.refusal()
    shown = str(list(wrong)) if isinstance(wrong, tuple) else repr(wrong)
    assert f"audio_encoder: the engine does not fit: {field} is {shown} in the engine's passport and " in sentence
    assert here in sentence and "\n" not in sentence
    assert "build it again with: python build_engines.py --stage audio_encoder" in sentence


def test_every_field_is_compared_or_told(place: Place) -> None:
    compared_at_build = {"precision", "onnx_sha256"}  # by build_engines.py: what is asked for, which a server is not
    source = (ROOT / "backends" / "launch" / "engines.py").read_text()
    for field in vars(place.good):
        assert field in TOLD or field in compared_at_build or f'"{field}"' in source, field
    for field, other in (("driver", "570.0"), ("built", "never"), ("opt", (1, 1920)), ("agreement", 0.9)):
        assert field in TOLD
        changed: dict[str, Any] = {field: other}
        place.write(replace(place.good, **changed))
        place.check()


def test_an_engine_may_do_more_than_is_asked(place: Place) -> None:
    place.write(replace(place.good, minimum=(1, 960), maximum=(16, 2_880_000)))
    place.check()


def test_what_the_machine_does_not_tell_is_not_compared(place: Place) -> None:
    place.check(machine=Machine())


def test_another_checkpoint_is_noticed(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "checkpoint"
    shutil.copytree(ROOT / "checkpoints" / "voice" / "codec", other / "codec")
    place.check(checkpoint=other)
    config = json.loads((other / "codec" / "config.json").read_text())
    (other / "codec" / "config.json").write_text(json.dumps(config | {"version": 2}))
    assert "checkpoint_sha256" in place.refusal(checkpoint=other)
    assert f"--checkpoint {other}" in place.refusal(checkpoint=other)


def test_a_number_of_codebooks_that_no_rebuild_mends(place: Place, tmp_path: Path) -> None:
    """The plan would be right; the dims in the config are not."""
    checkpoint = write_checkpoint(tmp_path / "checkpoint", ROOT / "checkpoints" / "voice")
    said = place.refusal(checkpoint=checkpoint)
    assert "its config has 12 codebooks in the dims of codes" in said and "speaks 3: change that number" in said
    assert "build_engines" not in said


def test_missing_and_broken_files_are_sentences(place: Place) -> None:
    place.passport.write_text("{")
    assert "engine.json cannot be read as JSON" in place.refusal()
    values = json.loads(place.good.to_json())
    place.passport.write_text(json.dumps(values | {"surprise": 1}))
    assert "is no passport of this version: surprise" in place.refusal()
    place.passport.write_text(json.dumps(values | {"maximum": [8, "x"]}))
    assert "maximum is [8, 'x'], not [batch, samples]" in place.refusal()
    place.passport.unlink()
    assert "engine.json does not exist" in place.refusal()
    place.plan.unlink()
    sentence = place.refusal()
    assert "has no engine" in sentence and "--max-seconds 60 --max-batch 8" in sentence


def test_a_triton_without_the_backend_is_named(place: Place) -> None:
    (place.triton.python_backend.parent / "tensorrt").rmdir()
    assert "needs Triton's TensorRT backend" in place.refusal()


def test_without_engines_nothing_is_asked(place: Place) -> None:
    check_engines(find_models([place.repository]), ROOT, None, place.triton, MACHINE)


def test_the_library_tells_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert installed_tensorrt([str(tmp_path)]) is None
    for name in ("libnvinfer.so.10", "libnvinfer.so.10.5.0", "libnvinfer_plugin.so.10.6.0"):
        (tmp_path / name).touch()
    assert installed_tensorrt([str(tmp_path)]) == "10.5.0"
    (tmp_path / "libnvinfer.so.10.7.0").touch()
    assert installed_tensorrt([str(tmp_path)]) is None  # two: which one Triton takes is not known


def test_both_configs_are_one_model() -> None:
    found = []
    for name in ("config.pbtxt", "configs/tensorrt.pbtxt"):
        text = (ROOT / "model_repository" / "audio_encoder" / name).read_text(encoding="utf-8")
        found.append(text_format.Parse(text, model_config_pb2.ModelConfig()))  # Triton's own schema
    for config in found:
        assert (config.name, config.max_batch_size) == ("audio_encoder", 8)
        assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == [
            ("audio", model_config_pb2.TYPE_FP32, [-1])
        ]
        assert [(each.name, each.data_type, len(each.dims)) for each in config.output] == [
            ("codes", model_config_pb2.TYPE_INT32, 2)
        ]
        assert not config.model_transaction_policy.decoupled
    python, engine = found
    assert engine.platform == "tensorrt_plan" and engine.default_model_filename == FILES["tensorrt"][0]
    assert python.parameters["max_seconds"].string_value == engine.parameters["max_seconds"].string_value
    assert python.parameters["checkpoint"].string_value == engine.parameters["checkpoint"].string_value


def test_a_passport_knows_its_own_fields(place: Place) -> None:
    values = json.loads(place.good.to_json())
    del values["gpu"]
    place.passport.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="gpu"):
        Passport.read(place.passport)
