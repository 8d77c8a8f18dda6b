"""The temporary folder of one server. A server that is killed leaves it behind, and the next one removes it: when it
starts, when it is ready and when it ends, for the Triton of the killed one may live on for seconds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "voxstage-serve-"
#: Inside a folder: held by a lock while a process of its server lives, and the prefix of the server's shared memory.
OWNER = "owner"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class RunFolder:
    """``lock``: a file descriptor that the server's processes inherit: the folder is theirs until all are gone."""

    path: Path
    lock: int


@contextlib.contextmanager
def run_folder(shm_prefix: str) -> Iterator[RunFolder]:
    """A new folder, removed at the end. ``shm_prefix``: how the names of the server's /dev/shm regions begin."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        new = Path(name) / f"{OWNER}.new"
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(lock, shm_prefix.encode())
            new.rename(Path(name) / OWNER)  # only now does it count: nobody may find it without its lock
            yield RunFolder(Path(name), lock)
        finally:
            os.close(lock)


def remove_stale() -> list[tuple[Path, int]]:
    """Remove the folders, and the shared memory, of servers of this user that were killed.

    Returns each folder and the id of its server's process.
    """
    folders = sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    return [(folder, server) for folder in folders if (server := _remove_stale(folder)) is not None]


def _remove_stale(folder: Path) -> int | None:
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return None
        lock = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # gone meanwhile, or in the making
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner = re.fullmatch(r"voxstage-(\d+)-", os.read(lock, 100).decode(errors="replace"))
        if owner is None:
            return None
        for region in SHARED_MEMORY.glob(f"{owner[0]}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(folder)
        return int(owner[1])
    except OSError:  # held by a server that lives, or not ours to remove
        return None
    finally:
        os.close(lock)
