"""``python -m client``: speak, transcribe, health and bench. Messages go to stderr; each help has the exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from client.commands import bench, health, speak, transcribe
from client.errors import InvalidArgument, SpeechError

INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m client", description="Talks to a Voxstage server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (speak, transcribe, health, bench):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 2
    except SpeechError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        where = f" to {error.filename}" if error.filename else ""
        print(f"The output could not be written{where}: {error.strerror or error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the request was cancelled.", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
