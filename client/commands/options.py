"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.errors import InvalidArgument

DEFAULT_URL = "localhost:8001"


def seconds(text: str) -> float:
    """An argparse type: a finite time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; give seconds above 0")
    return value


def add_server(
    parser: argparse.ArgumentParser,
    model: str | None = "tts",
    *,
    which: str = "",
    waits: str = "60 for the first, 10 for each later one",
    url: str | None = DEFAULT_URL,
    without: str = DEFAULT_URL,
) -> None:
    """The server's options.

    model    default of --model; ``which`` is what its help says about leaving it out, when that is not its name
    waits    what the help says about leaving out --timeout
    url      default of --url; ``without`` is what its help says about leaving it out
    """
    parser.add_argument("--url", default=url, help=f"host:port of the server's gRPC port ({without})")
    parser.add_argument("--model", default=model, help=f"name of the ensemble ({which or model})")
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help=f"the longest wait for any chunk ({waits})")


def count(text: str) -> int:
    """An argparse type: a whole number from 1 up."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; give a whole number from 1 up")
    return value


def counts(text: str) -> tuple[int, ...]:
    """An argparse type: counts with commas between them."""
    return tuple(count(part) for part in text.split(","))


def count_or_none(text: str) -> int:
    """An argparse type: a whole number from 0 up."""
    return 0 if text.strip() == "0" else count(text)


def rates(text: str) -> tuple[float, ...]:
    """An argparse type: finite numbers above 0 with commas between them."""
    found = []
    for part in text.split(","):
        try:
            found.append(float(part))
        except ValueError:
            found.append(0.0)
        if not 0 < found[-1] < float("inf"):
            raise argparse.ArgumentTypeError(f"{part!r} is not a rate; give requests a second above 0")
    return tuple(found)


def timeouts(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments for a client: only what was given."""
    if args.timeout is None:
        return {}
    return {"chunk_timeout": args.timeout, "first_chunk_timeout": args.timeout}


def check_writable(path: Path, option: str) -> None:
    """Refuse what cannot become a file before the server is put to work. Raises InvalidArgument naming ``option``."""
    if path.is_dir():
        raise InvalidArgument(f"{path} is a folder; give the name of a file", field=option)
    if not path.parent.is_dir():
        raise InvalidArgument(f"the folder {path.parent} does not exist; create it first", field=option)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidArgument(f"{path} cannot be written; choose another place", field=option)


def check_suffix(path: Path, option: str, suffixes: Sequence[str], otherwise: str = "") -> None:
    """Refuse a name that promises another kind of file than is written; one without a suffix promises none. Raises
    InvalidArgument naming ``option``, the ``suffixes`` and what can be done ``otherwise``."""
    if path.suffix and path.suffix.lower() not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise InvalidArgument(f"{path} ends in {path.suffix}; give {known}{otherwise}", field=option)
