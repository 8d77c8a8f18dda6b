"""Ready files and temporary folders of servers that were killed, and of those that live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backends.launch.failure import USAGE, LaunchError
from backends.launch.process import start_time
from backends.launch.ready_file import ReadyFile
from backends.launch.run_folder import SHARED_MEMORY, remove_stale, run_folder
from tests.conftest import ROOT


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    return tmp_path / "ready.json"


@pytest.fixture
def dead() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_ready_file_is_written_and_removed(ready: Path) -> None:
    file = ReadyFile(ready)
    assert file.claim() is None
    file.write({"http": 1})
    assert json.loads(ready.read_text()) == {"pid": os.getpid(), "started": start_time(os.getpid()), "http": 1}
    file.remove()
    assert not ready.exists()
    ReadyFile(None).write({})


def test_the_file_of_a_killed_server_is_removed(ready: Path, dead: int) -> None:
    ready.write_text(json.dumps({"pid": dead, "started": 5}))
    assert ReadyFile(ready).claim() == (ready, dead)
    assert not ready.exists()


def test_another_process_with_the_same_id_is_not_the_server(ready: Path) -> None:
    ready.write_text(json.dumps({"pid": os.getpid(), "started": 5}))
    assert ReadyFile(ready).claim() == (ready, os.getpid())


def test_the_file_of_a_live_server_stays(ready: Path) -> None:
    ReadyFile(ready).write({"http": 1})
    text = ready.read_text()
    other = ReadyFile(ready)
    for attempt in (other.claim, lambda: other.write({"http": 2})):
        with pytest.raises(LaunchError, match=f"belongs to a server that runs, process {os.getpid()}") as caught:
            attempt()
        assert caught.value.exit_code == USAGE
    other.remove()
    assert ready.read_text() == text


@pytest.mark.parametrize("content", ["# My notes\n", "[1]", '{"port": 1}', '{"pid": "x"}', "7"])
def test_a_file_that_is_something_else_stays(ready: Path, content: str) -> None:
    ready.write_text(content)
    with pytest.raises(LaunchError, match=r"ready\.json exists and is no ready file"):
        ReadyFile(ready).claim()
    assert ready.read_text() == content


def test_an_empty_file_is_a_name_that_was_made_sure_of(ready: Path) -> None:
    ready.touch()
    assert ReadyFile(ready).claim() is None


def test_a_place_where_no_file_can_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="nowhere does not exist"):
        ReadyFile(tmp_path / "nowhere" / "ready.json").claim()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def killed(temporary: Path, prefix: str) -> tuple[Path, int]:
    """The folder of a process that ended by SIGKILL, and the id of a child that lives on with the folder's lock."""
    code = (
        "import os, signal, subprocess, tempfile; from backends.launch.run_folder import run_folder; "
        f"tempfile.tempdir = {str(temporary)!r}; manager = run_folder({prefix!r}); folder = manager.__enter__(); "
        "child = subprocess.Popen(['sleep', '60'], pass_fds=[folder.lock], stdout=subprocess.DEVNULL); "
        "print(folder.path, child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    folder, child = ended.stdout.split()
    return Path(folder), int(child)


def test_the_folder_and_the_memory_of_a_killed_server_go_with_its_last_process(temporary: Path, dead: int) -> None:
    """Triton inherits the lock: while it still ends its requests, its environment stays."""
    prefix = f"voxstage-{dead}-"
    folder, child = killed(temporary, prefix)
    region = SHARED_MEMORY / f"{prefix}region"
    region.touch()
    try:
        assert remove_stale() == []
        assert folder.is_dir() and region.exists()
    finally:
        os.kill(child, signal.SIGKILL)
    while start_time(child) is not None:
        time.sleep(0.01)
    with run_folder(f"voxstage-{os.getpid()}-") as mine:
        assert remove_stale() == [(folder, dead)]
        assert not folder.exists() and not region.exists()
        assert mine.path.is_dir()
    assert list(temporary.iterdir()) == []


def test_what_is_not_ours_is_left_alone(temporary: Path) -> None:
    for name in ("voxstage-serve-young", "voxstage-other"):
        (temporary / name).mkdir()
    (temporary / "voxstage-serve-foreign").mkdir()
    (temporary / "voxstage-serve-foreign" / "owner").write_text("../../etc")
    assert remove_stale() == []
    assert len(list(temporary.iterdir())) == 3
