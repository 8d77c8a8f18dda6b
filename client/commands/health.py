"""``python -m client health``: can the server work? One sentence, and an exit code for scripts and healthchecks."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from client.aio import AsyncSpeechClient, AsyncTranscriber
from client.commands.options import add_server, timeouts
from client.connection import Connection
from client.errors import SpeechError
from client.health import Health

CLIENTS: dict[str, type[AsyncSpeechClient] | type[AsyncTranscriber]] = {
    "tts": AsyncSpeechClient,
    "asr": AsyncTranscriber,
}
SPEAKS = {"speak": "speaks", "transcribe": "transcribes"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "health",
        help="check that the server can speak, or transcribe",
        description="Asks whether server and models are ready, then has one frame spoken, and a second of sound "
        "transcribed: whatever the server has been started for. Exit code: 0 all answered, 1 not.",
    )
    add_server(parser, None, which="tts and asr, those that are served")
    parser.add_argument("--json", action="store_true", help="print all that was found as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = asyncio.run(_check(args.url, args.model, timeouts(args)))
    healths = [health for _, health in found]
    if args.json:
        print(json.dumps(_merged(healths).as_dict()))
    else:
        for client, health in found:
            if health.ok and health.latency_s is not None:
                took = f"the canary's first chunk took {1000 * health.latency_s:.0f} ms"
                print(f"The server at {args.url} {SPEAKS[client.task]}: {took}.")
            else:
                print(health.problem)
    return 0 if all(health.ok for health in healths) else 1


async def _check(url: str, model: str | None, options: dict[str, Any]) -> list[tuple[Connection, Health]]:
    """One check for each model: the one given, else those of CLIENTS that are served; tts when none is."""
    names = [model] if model else await _served(url, options) or ["tts"]
    found: list[tuple[Connection, Health]] = []
    for name in names:
        kind = CLIENTS.get(name) or await _kind(url, name, options)
        async with kind(url, model=name, **options) as client:
            found.append((client, await client.health()))
        if not found[-1][1].live:
            break  # nobody is there for the others either
    return found


async def _served(url: str, options: dict[str, Any]) -> list[str]:
    async with AsyncSpeechClient(url, **options) as client:
        try:
            states = await client.models()
        except SpeechError:
            return []
    return [name for name in CLIENTS if states.get(name)]


async def _kind(url: str, model: str, options: dict[str, Any]) -> type[AsyncSpeechClient] | type[AsyncTranscriber]:
    """By the inputs of a model of another name; AsyncSpeechClient, whose health says what is wrong, when unknown."""
    async with AsyncSpeechClient(url, model=model, **options) as client:
        try:
            metadata = await client.metadata()
        except SpeechError:
            return AsyncSpeechClient
    inputs = {tensor["name"] for tensor in metadata["model"].get("inputs", [])}
    return AsyncTranscriber if "audio_file" in inputs else AsyncSpeechClient


def _merged(healths: list[Health]) -> Health:
    """One for all: ok when all are, as slow as the slowest, with all problems."""
    first = healths[0]
    latencies = [health.latency_s for health in healths if health.latency_s is not None]
    return Health(
        ok=all(health.ok for health in healths),
        live=first.live,
        ready=all(health.ready for health in healths),
        models=first.models,
        latency_s=max(latencies, default=None) if len(latencies) == len(healths) else None,
        problem=" ".join(health.problem for health in healths if health.problem),
    )
