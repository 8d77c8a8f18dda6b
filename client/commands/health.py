"""``python -m client health``: can the server speak? One sentence, and an exit code for scripts and healthchecks."""

from __future__ import annotations

import argparse
import json

from client.commands.options import add_server, timeouts
from client.sync import SpeechClient


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "health",
        help="check that the server can speak",
        description="Asks whether server and models are ready, then has one frame spoken. "
        "Exit code: 0 it spoke, 1 it did not.",
    )
    add_server(parser)
    parser.add_argument("--json", action="store_true", help="print all that was found as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with SpeechClient(args.url, model=args.model, **timeouts(args)) as client:
        health = client.health()
    if args.json:
        print(json.dumps(health.as_dict()))
    elif health.ok and health.latency_s is not None:
        print(f"The server at {args.url} speaks: the canary's first chunk took {1000 * health.latency_s:.0f} ms.")
    else:
        print(health.problem)
    return 0 if health.ok else 1
