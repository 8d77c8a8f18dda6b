"""Where Triton is, and what has to lie around it so that its Python stages run in this interpreter.

Two homes are known: an NGC container (``tritonserver`` on PATH or in /opt/tritonserver, complete) and the PyPI package
nvidia-pytriton, which brings the same server without a backend directory and one Python stub for each Python version.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.launch.failure import USAGE, LaunchError

STUB = "triton_python_backend_stub"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Triton:
    """A Triton server. ``python_backend`` holds libtriton_python.so, ``stub`` runs this Python version."""

    server: Path
    python_backend: Path
    stub: Path
    libraries: Path | None = None


@dataclass(frozen=True)
class Layout:
    """What ``lay_out`` made: the backend directory and the environment to start the server with."""

    backends: Path
    environment: Mapping[str, str]


def find_triton(path: str | None = None, opt: Path = Path("/opt/tritonserver"), package: Path | None = None) -> Triton:
    """Find a server: on ``path`` (default: PATH), in ``opt``, in the installed nvidia-pytriton (default: ``package``).

    Raises LaunchError where there is none, or none whose stub fits the running Python.
    """
    on_path = shutil.which("tritonserver", path=path)
    home = Path(on_path).resolve().parent.parent if on_path else opt
    if (home / "bin" / "tritonserver").is_file() and (home / "backends" / "python" / "libtriton_python.so").is_file():
        backend = home / "backends" / "python"
        return Triton(home / "bin" / "tritonserver", backend, _fitting_stub(backend / STUB))
    package = package or _package_folder()
    if package is None:
        raise LaunchError(
            "no Triton found: no tritonserver on PATH or in /opt/tritonserver, and nvidia-pytriton is not installed "
            "in this Python (pip install nvidia-pytriton==0.7.0)",
            USAGE,
        )
    inside = package / "tritonserver"
    stubs = inside / "python_backend_stubs"
    stub = stubs / _PYTHON / STUB
    if not stub.is_file():
        versions = sorted((entry.name for entry in stubs.glob("3.*")), key=lambda name: int(name.split(".")[1]))
        raise LaunchError(
            f"the Triton of nvidia-pytriton has no stub for Python {_PYTHON}; "
            f"it has one for {', '.join(versions) or 'none'}",
            USAGE,
        )
    return Triton(
        inside / "bin" / "tritonserver", inside / "backends" / "python", stub, package.parent / "nvidia_pytriton.libs"
    )


def triton_version(triton: Triton) -> str:
    """For people: where the server comes from."""
    if triton.libraries is None:
        return str(triton.server)
    return f"nvidia-pytriton {importlib.metadata.version('nvidia-pytriton')}"


def _package_folder() -> Path | None:
    # find_spec does not import the package: importing pytriton takes a second and starts threads.
    spec = importlib.util.find_spec("pytriton")
    return Path(spec.origin).parent if spec and spec.origin else None


def _fitting_stub(stub: Path) -> Path:
    """``stub`` itself, if it is linked with the running Python version."""
    if not stub.is_file():
        raise LaunchError(f"Triton's Python backend has no {STUB}: {stub.parent}", USAGE)
    linked = re.search(rb"libpython(3\.\d+)\.so", stub.read_bytes())
    version = linked.group(1).decode() if linked else _PYTHON
    if version != _PYTHON:
        raise LaunchError(
            f"{stub} is made for Python {version}, and this is Python {_PYTHON}: run serve.py with python{version}",
            USAGE,
        )
    return stub


def lay_out(triton: Triton, root: Path, folder: Path) -> Layout:
    """Make, in the empty ``folder``, a backend directory and an environment in which stages see this Python's packages.

    ``root`` is the repository root; stages can import ``backends`` from it. Raises LaunchError without a libpython.
    """
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True)
    for entry in (
        triton.python_backend / "libtriton_python.so",
        triton.python_backend / "triton_python_backend_utils.py",
    ):
        (backend / entry.name).symlink_to(entry)
    (backend / STUB).symlink_to(triton.stub)
    for other in triton.python_backend.parent.iterdir():  # the native backends of a complete installation
        if triton.libraries is None and other.name != "python":
            (folder / "backends" / other.name).symlink_to(other)
    if not os.access(triton.stub, os.X_OK):
        triton.stub.chmod(triton.stub.stat().st_mode | 0o111)

    libraries = folder / "lib"
    libraries.mkdir()
    _link_libpython(triton, libraries)
    interpreter = _lay_out_interpreter(root, folder / "python")

    environment = dict(os.environ)
    # Only libpython is linked into our own folder: the folder it lies in may hold a libstdc++ that is not Triton's.
    first = [str(libraries), *([str(triton.libraries)] if triton.libraries else [])]
    environment["LD_LIBRARY_PATH"] = _joined(*first, environment.get("LD_LIBRARY_PATH"))
    environment["PATH"] = _joined(str(interpreter), environment.get("PATH"))
    environment["PYTHONPATH"] = _joined(str(root), environment.get("PYTHONPATH"))
    environment["VOXSTAGE_HOME"] = str(root)
    environment["PYTHONUNBUFFERED"] = "1"
    return Layout(folder / "backends", environment)


def _lay_out_interpreter(root: Path, folder: Path) -> Path:
    """A minimal virtual environment. Returns its ``bin``, to be put first on PATH.

    The stub starts Python isolated: it ignores PYTHONPATH and PYTHONHOME, takes the first ``python3`` on PATH for
    itself and reads the pyvenv.cfg beside it (measured on Triton 2.51). Left alone, it would import the NumPy of the
    base interpreter and crash on the first string tensor. The .pth file adds the folders that this process imports
    from.
    """
    binary = folder / "bin"
    packages = folder / "lib" / f"python{_PYTHON}" / "site-packages"
    binary.mkdir(parents=True)
    packages.mkdir(parents=True)
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    for name in ("python3", f"python{_PYTHON}"):
        (binary / name).symlink_to(base)
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\n", encoding="utf-8"
    )
    seen = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lines = [str(root), *(f"import site; site.addsitedir({entry!r})" for entry in seen if os.path.isdir(entry))]
    (packages / "voxstage.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return binary


def _link_libpython(triton: Triton, folder: Path) -> None:
    """Link the shared library of the running Python into ``folder``; leave it to the system where the system has it."""
    name = f"libpython{_PYTHON}.so.1.0"
    variables = (sysconfig.get_config_var(key) for key in ("LIBDIR", "LIBPL"))
    places = [Path(str(variable)) for variable in variables if variable]
    places += [
        Path(sys.base_prefix) / "lib",
        *(place / str(sysconfig.get_config_var("MULTIARCH") or "") for place in places),
    ]
    for place in places:
        if (place / name).is_file():
            (folder / name).symlink_to(place / name)
            return
    known = subprocess.run(["ldd", str(triton.stub)], capture_output=True, text=True, check=False).stdout
    if re.search(rf"{re.escape(name)} => not found", known):
        raise LaunchError(
            f"Triton's Python stages need {name}, which this Python does not bring; "
            f"on Debian and Ubuntu the package libpython{_PYTHON} has it",
            USAGE,
        )


def _joined(*entries: str | None) -> str:
    return os.pathsep.join(entry for entry in entries if entry)
