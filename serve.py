#!/usr/bin/env python3
"""Start Voxstage: ``python serve.py --help``. Everything it does is in backends/launch/."""

from __future__ import annotations

import sys
from pathlib import Path

from backends.launch.failure import LaunchError
from backends.launch.options import parse_options
from backends.launch.supervise import Supervisor

ROOT = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 ended by a signal, 1 failed while starting or serving, 2 wrong command line or files,
    130 or 143 killed by a second SIGINT or SIGTERM.
    """
    try:
        return Supervisor(parse_options(arguments, ROOT), ROOT).run()
    except LaunchError as error:
        print(f"serve.py: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
