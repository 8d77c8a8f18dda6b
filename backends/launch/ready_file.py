"""The ready file: ports and process ids of a serving server, for scripts. A live server's is never taken over."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends.launch.failure import USAGE, LaunchError
from backends.launch.process import start_time


class ReadyFile:
    """``path``: None where nobody asked for one; then nothing happens."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written = False

    def claim(self) -> tuple[Path, int] | None:
        """Make sure that the file can be written once the server is ready, and that nobody reads an old one till then.

        A file whose server was killed is removed; returns it and the id of that process. Raises LaunchError for the
        file of a live server, for a file that is something else, and for a place where none can be made.
        """
        path = self._path
        if path is None:
            return None
        if not path.parent.is_dir():
            raise LaunchError(f"--ready-file {path}: the folder {path.parent} does not exist", USAGE)
        if not os.access(path.parent, os.W_OK):
            raise LaunchError(f"--ready-file {path}: the folder {path.parent} cannot be written", USAGE)
        if not path.exists():
            return None
        try:
            text = path.read_text(encoding="utf-8")
            state = json.loads(text) if text.strip() else {}  # empty: somebody has made sure of the name
            server = int(state["pid"]) if text.strip() else None
        except (OSError, ValueError, TypeError, KeyError):
            raise LaunchError(f"--ready-file {path} exists and is no ready file; give another name", USAGE) from None
        if server is not None and _lives(server, state):
            raise LaunchError(
                f"--ready-file {path} belongs to a server that runs, process {server}; stop it, or give another name",
                USAGE,
            )
        path.unlink(missing_ok=True)
        return None if server is None else (path, server)

    def write(self, state: Mapping[str, Any]) -> None:
        """Write ``state`` and, beside it, which process this is. Raises LaunchError as ``claim`` does."""
        if self._path is None:
            return
        self.claim()  # a second server may have been started meanwhile
        content = {"pid": os.getpid(), "started": start_time(os.getpid()), **state}
        partial = self._path.with_name(self._path.name + ".partial")
        try:
            partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
            partial.replace(self._path)  # a reader never sees half of it
        except OSError as error:
            raise LaunchError(f"--ready-file {self._path} cannot be written: {error.strerror}") from None
        self._written = True

    def remove(self) -> None:
        """Remove what ``write`` wrote."""
        if self._path is not None and self._written:
            self._path.unlink(missing_ok=True)


def _lives(server: int, state: Mapping[str, Any]) -> bool:
    """Whether the process that wrote the file lives. Ids are used again, so the time of its start must be the same."""
    started = start_time(server)
    return started is not None and started == state.get("started", started)
