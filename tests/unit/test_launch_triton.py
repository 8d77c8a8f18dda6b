"""Finding Triton, laying out its backend directory, its command line, its ports and its log."""

from __future__ import annotations

import io
import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from backends.launch.command import triton_command
from backends.launch.failure import RUNTIME, USAGE, LaunchError
from backends.launch.log import TritonLog, clean, first_sentence
from backends.launch.options import parse_options
from backends.launch.ports import pick_ports
from backends.launch.triton import STUB, Triton, find_triton, lay_out

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
NOWHERE = Path("/nowhere/tritonserver")


def make_installation(home: Path, version: str = VERSION) -> Path:
    """A complete Triton as in a container: server, Python backend, one more backend."""
    for folder in ("bin", "backends/python", "backends/onnxruntime"):
        (home / folder).mkdir(parents=True)
    for name in ("bin/tritonserver", f"backends/python/{STUB}"):
        (home / name).write_bytes(b"\x7fELF..libpython" + version.encode() + b".so.1.0\0")
        (home / name).chmod(0o755)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (home / "backends" / "python" / name).write_text("")
    return home


def make_package(site: Path, version: str = VERSION) -> Path:
    inside = site / "pytriton" / "tritonserver"
    (inside / "python_backend_stubs" / version).mkdir(parents=True)
    (inside / "python_backend_stubs" / version / STUB).write_text("")
    return site / "pytriton"


def test_a_server_on_path_wins_then_opt_then_the_package(tmp_path):
    on_path, opt = make_installation(tmp_path / "a"), make_installation(tmp_path / "b")
    package = make_package(tmp_path / "site")
    assert find_triton(str(on_path / "bin"), opt, package).server == on_path / "bin" / "tritonserver"
    assert find_triton("", opt, package).server == opt / "bin" / "tritonserver"
    found = find_triton("", NOWHERE, package)
    assert found.server == package / "tritonserver" / "bin" / "tritonserver"
    assert found.libraries == tmp_path / "site" / "nvidia_pytriton.libs"


def test_a_stub_for_another_python_is_refused_with_both_versions(tmp_path):
    with pytest.raises(LaunchError, match=rf"made for Python 3\.7, and this is Python {VERSION}"):
        find_triton("", make_installation(tmp_path / "opt", "3.7"))
    with pytest.raises(LaunchError, match=rf"no stub for Python {VERSION}; it has one for 3\.7"):
        find_triton("", NOWHERE, make_package(tmp_path / "site", "3.7"))


def test_no_triton_at_all_is_one_sentence(monkeypatch):
    monkeypatch.setattr("backends.launch.triton._package_folder", lambda: None)
    with pytest.raises(LaunchError, match="no Triton found") as caught:
        find_triton("", NOWHERE)
    assert caught.value.exit_code == USAGE


def test_the_layout_has_the_stub_and_the_other_backends(tmp_path):
    triton = find_triton("", make_installation(tmp_path / "opt"))
    folder = tmp_path / "layout"
    layout = lay_out(triton, tmp_path, folder)
    python = layout.backends / "python"
    assert sorted(entry.name for entry in python.iterdir()) == sorted(
        [STUB, "libtriton_python.so", "triton_python_backend_utils.py"]
    )
    assert (layout.backends / "onnxruntime").is_dir()
    assert layout.environment["VOXSTAGE_HOME"] == str(tmp_path)
    assert layout.environment["PATH"].split(os.pathsep)[0] == str(folder / "python" / "bin")


def test_an_isolated_python_from_the_layout_sees_our_packages_and_the_root(tmp_path):
    """The stub starts Python with -I semantics from the first python3 on PATH."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "only_here.py").write_text("")
    layout = lay_out(find_triton("", make_installation(tmp_path / "opt")), root, tmp_path / "layout")
    code = "import numpy, only_here, pytest; print(numpy.__file__, numpy.__version__)"
    answer = subprocess.run(
        ["python3", "-I", "-c", code], env=dict(layout.environment), capture_output=True, text=True, check=True
    )
    import numpy

    assert answer.stdout.split() == [numpy.__file__, numpy.__version__]


def test_the_command_line_names_addresses_ports_and_the_shared_memory_prefix(tmp_path):
    options = parse_options(["--host", "::1", "--model-config-name", "tensorrt", "--log-verbose", "3"], tmp_path)
    triton = Triton(Path("/t/bin/tritonserver"), Path("/t/b"), Path("/t/s"))
    command = triton_command(triton, Path("/b"), options, {"http": 1, "grpc": 2, "metrics": 3}, "voxstage-7-")
    pairs = list(itertools.pairwise(command))
    for expected in (
        ("--model-repository", str(tmp_path.resolve() / "ensemble")),
        ("--metrics-address", "::1"),
        ("--grpc-port", "2"),
        ("--backend-config", "python,shm-region-prefix-name=voxstage-7-"),
        ("--model-config-name", "tensorrt"),
        ("--log-verbose", "2"),
    ):
        assert expected in pairs


def test_ports_are_free_and_different():
    ports = pick_ports("127.0.0.1", {"http": 0, "grpc": 0, "metrics": 0})
    assert len(set(ports.values())) == 3
    assert pick_ports("127.0.0.1", ports) == ports


def test_a_port_in_use_is_named_with_the_option_that_changes_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} on 127.0.0.1 is in use.*--grpc-port") as caught:
            pick_ports("127.0.0.1", {"http": 0, "grpc": port})
    assert caught.value.exit_code == RUNTIME


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(LaunchError, match=r"192\.0\.2\.1"):  # TEST-NET-1, RFC 5737
        pick_ports("192.0.2.1", {"http": 0})


FAILED = (
    "E1130 17:59:01.726816 5602 model_lifecycle.cc:642] \"failed to load 'd' version 1: Internal: "
    'ValueError: bad \\"x\\"\\n\\nAt:\\n  /r/d/1/model.py(3): initialize\\n"'
)


def test_the_log_is_read_for_loads_failures_and_drain(capsys):
    lines = [
        "I1130 17:59:01.1 5602 model_lifecycle.cc:849] \"successfully loaded 'p'\"",
        FAILED,
        'W1130 17:59:01.2 5602 pinned_memory_manager.cc:170] "failed to allocate pinned system memory: none"',
        "| d | 1 | UNAVAILABLE |",
        "a stage speaks",
        'I1130 17:59:01.3 5602 server.cc:321] "Timeout 4: Found 0 model versions that have in-flight inferences"',
    ]
    log = TritonLog(io.StringIO("\n".join(lines) + "\n"), show_all=False)
    log.wait(5)
    assert log.loaded == {"p"}
    assert log.failed == {"d": 'ValueError: bad "x"'}
    assert log.drained
    assert list(log.last) == lines
    assert capsys.readouterr().err.splitlines() == [FAILED, "a stage speaks"]


def test_an_error_line_becomes_what_the_stage_said():
    assert first_sentence("Internal: CheckpointError: a\n b\n\nAt:\n  x(1): y\n") == "CheckpointError: a b"
    assert first_sentence("Invalid argument - Internal: a") == "a"
    assert first_sentence("Internal: TritonModelException: INVALID_ARG device: a") == "INVALID_ARG device: a"
    assert clean('E1130 17:59:01.1 1 a.cc:1] "say \\"x\\""') == 'say "x"'
    assert clean("E1130 17:59:01.1 1 a.cc:1] plain") == "plain"
