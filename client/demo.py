"""``make demo``: start the server, say a sentence, hear it back with a speech recogniser, stop the server.

Runs from the root of the repository (it needs serve.py and tests/judge.py); the rest of client/ does not need it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from client.chunk import AudioChunk
from client.errors import SpeechError
from client.local_server import ROOT, running_server
from client.progress import Progress, summary, table
from client.speech import timings
from client.sync import SpeechClient
from client.wav import WavWriter

SENTENCE = "Hello, welcome to the future of voice technology."


class DemoError(Exception):
    """The demo cannot go on. The message is the sentence to print."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Returns the exit code: 0, 1 for a failure, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m client.demo", description="Starts a server and says a sentence.")
    parser.add_argument("text", nargs="?", default=SENTENCE, metavar="TEXT", help="what to say")
    parser.add_argument("-o", "--output", default=str(ROOT / "out" / "demo.wav"), metavar="FILE", help="the WAV file")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="0 and above")
    parser.add_argument("--serve-arg", action="append", default=[], metavar="ARG", help="passed on to serve.py")
    args = parser.parse_args(argv)
    try:
        run(args.text, Path(args.output), args.seed, args.serve_arg)
    except (DemoError, SpeechError) as error:
        print(f"The demo failed. {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The demo failed. {error.filename or 'A file'}: {error.strerror or error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return 0


def run(text: str, output: Path, seed: int, serve_args: Sequence[str]) -> None:
    """The demo itself. Raises DemoError, SpeechError or OSError; the server is gone when this returns or raises."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with running_server(serve_args) as ports, SpeechClient(f"127.0.0.1:{ports['grpc']}") as client:
        print(f"Saying: {text}", flush=True)
        chunks, started_at = _say(client, text, seed, output)
    if not sum(len(chunk.audio) for chunk in chunks):
        raise DemoError("The server sent no audio.")
    # The server has stopped by now, so that the recogniser has the machine to itself.
    heard, errors = _listen(output, text)
    rows = summary(timings(chunks, started_at))
    rows += [("recogniser heard", heard or "nothing"), ("word error rate", f"{100 * errors:.0f} %")]
    print(f"\n{table(rows)}\n\nThe audio is in {_shown(output)}.", flush=True)


def _say(client: SpeechClient, text: str, seed: int, output: Path) -> tuple[list[AudioChunk], float]:
    """Stream ``text`` into the file. Returns the chunks and the time the request went out."""
    chunks: list[AudioChunk] = []
    writer: WavWriter | None = None
    with client.stream(text, seed=seed, format="s16") as stream, contextlib.ExitStack() as stack:
        progress = Progress(stream.started_at)
        stack.callback(progress.close)
        for chunk in stream:
            if writer is None:
                writer = stack.enter_context(WavWriter(output, chunk.sample_rate, chunk.channels))
            writer.write(chunk.audio)
            chunks.append(chunk)
            progress.update(chunk)
        return chunks, stream.started_at


def _listen(path: Path, text: str) -> tuple[str, float]:
    """What the recogniser hears in the file, and its word error rate against ``text``."""
    import wave

    try:
        from tests.judge import transcribe, word_error_rate

        print("Listening to it with Whisper tiny.en.", flush=True)
        with wave.open(str(path)) as file:
            audio = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
            heard = transcribe(audio, file.getframerate())
    except ImportError as error:
        raise DemoError(f"The recogniser is not installed ({error}). `make demo` installs it.") from None
    return heard, word_error_rate(text, heard)


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    sys.exit(main())
