#!/usr/bin/env python3
"""Build the engine of a stage: ``python build_engines.py --help``. Everything it does is in backends/encoder/."""

from __future__ import annotations

import sys
from pathlib import Path

from backends.encoder.command import main
from backends.errors import CheckpointError, InvalidArgument, VoxstageError

ROOT = Path(__file__).resolve().parent


def run(arguments: list[str]) -> int:
    """Returns the exit code: 0 the engine is in place, 1 it failed, 2 wrong command line or checkpoint."""
    try:
        return main(arguments, ROOT)
    except VoxstageError as error:
        print(f"build_engines.py: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, InvalidArgument | CheckpointError) else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
