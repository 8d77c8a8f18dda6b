"""What is wrong with a ``config.json``, as one sentence with the file and the key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backends.errors import CheckpointError


@contextlib.contextmanager
def config_errors(path: Path) -> Iterator[None]:
    """Turn what is raised for a config that contradicts itself into a CheckpointError that names ``path``."""
    try:
        yield
    except CheckpointError as error:
        if str(path) in error.args[0]:
            raise
        raise CheckpointError(f"{path}: {error.args[0]}") from None
    except Exception as error:
        if isinstance(error, KeyError):
            raise CheckpointError(f"{path}: {error.args[0]} is missing") from None
        raise CheckpointError(f"{path}: {reason(error)}") from None


def reason(error: Exception) -> str:
    """What ``error`` says, on one line."""
    # The validators of transformers wrap the reason into a heading that ends with a colon and a line break.
    return " ".join(str(error.__cause__ or error).split()) or type(error).__name__


def check_part(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object ``name`` of ``config``. Raises CheckpointError where it is missing or something else."""
    part = config.get(name)
    if not isinstance(part, dict):
        raise CheckpointError(f"{name} is {part!r}, expected an object" if name in config else f"{name} is missing")
    return part


def check_sizes(config: Mapping[str, Any], keys: tuple[str, ...], least: int = 1, part: str = "") -> None:
    """Raise CheckpointError unless each of ``keys`` is a whole number, ``least`` or more. ``part``: what ``config`` is,
    as ``name.``.
    """
    for key in keys:
        value = config.get(key)
        if key not in config:
            raise CheckpointError(f"{part}{key} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise CheckpointError(f"{part}{key} is {value!r}, expected a whole number of {least} or more")
