"""Options that several commands share."""

from __future__ import annotations

import argparse
from typing import Any

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


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"host:port of the server's gRPC port ({DEFAULT_URL})")
    parser.add_argument("--model", default="tts", help="name of the ensemble (tts)")
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="the longest wait for any chunk (60 for the first, 10 for each later one)",
    )


def timeouts(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments for a client: only what was given."""
    if args.timeout is None:
        return {}
    return {"chunk_timeout": args.timeout, "first_chunk_timeout": args.timeout}
