"""``python -m client speak``: text to a WAV file, to raw PCM on stdout, to the loudspeaker, while it is spoken."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Protocol

import numpy as np

from client.chunk import AudioChunk
from client.commands.options import add_server, check_suffix, check_writable, timeouts
from client.commands.refusal import in_words_of
from client.errors import InvalidArgument
from client.player import Player, find_player
from client.progress import Progress, summary, table
from client.request import SpeechRequest
from client.speech import timings
from client.sync import SpeechClient
from client.tensors import read_clip
from client.wav import RawWriter, WavWriter

CLIP_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")
RAW_SUFFIXES = (".pcm", ".raw")
#: Field of the request -> the option that it comes from.
OPTIONS = {
    "seed": "--seed",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "top_k": "--top-k",
    "max_frames": "--max-frames",
    "first_chunk_frames": "--first-chunk-frames",
    "chunk_frames": "--chunk-frames",
    "voice": "--voice",
    "reference_text": "--voice-text",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "speak",
        help="say a text",
        description="Says a text and writes the audio while it arrives.",
        epilog="Exit code: 0 spoken, 1 the server or the stream failed or made no sound, 2 wrong usage or a value "
        "that the server refused, 130 interrupted.",
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to say; absent or -: read from stdin")
    parser.add_argument("-o", "--output", metavar="FILE", help="a WAV file; .pcm, .raw, -: raw 16-bit PCM, - to stdout")
    parser.add_argument("--play", action="store_true", help="play it with ffplay, aplay, paplay or play")
    parser.add_argument("--voice", metavar="NAME|FILE", help="a voice of the server, or a wav, flac, mp3 or ogg file")
    parser.add_argument("--voice-text", metavar="TEXT", help="what the file says: the speech goes on from it")
    parser.add_argument("--seed", type=int, metavar="N", help="0 and above; the same seed gives the same audio")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-p", type=float, metavar="P", help="above 0, up to 1")
    parser.add_argument("--top-k", type=int, metavar="K", help="0 is off")
    parser.add_argument("--max-frames", type=int, metavar="N", help="the most frames to say")
    parser.add_argument("--first-chunk-frames", type=int, metavar="N", help="frames in the first chunk")
    parser.add_argument("--chunk-frames", type=int, metavar="N", help="frames in the later chunks")
    add_server(parser)
    parser.set_defaults(run=run)


class Sink(Protocol):
    def write(self, audio: np.ndarray) -> None: ...
    def close(self) -> None: ...


def run(args: argparse.Namespace) -> int:
    if args.output is None and not args.play:
        raise InvalidArgument(
            "is missing, so there is nowhere to put the audio; give -o FILE, -o - or --play", field="--output"
        )
    if args.output not in (None, "-"):
        check_writable(Path(args.output), "--output")
        check_suffix(Path(args.output), "--output", (".wav", *RAW_SUFFIXES))
    player = find_player() if args.play else None
    name, clip = _voice(args.voice)
    if args.voice_text is not None and clip is None:
        raise InvalidArgument("needs a clip; give its file with --voice", field="--voice-text")
    request = SpeechRequest(
        _text(args.text),
        seed=args.seed,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        max_frames=args.max_frames,
        format="s16",
        first_chunk_frames=args.first_chunk_frames,
        chunk_frames=args.chunk_frames,
        voice=name,
        reference_audio=None if clip is None else read_clip(clip, "--voice"),
        reference_text=None if args.voice_text is None else os.fsencode(args.voice_text),
    )
    try:
        return _speak(request, args, player)
    except InvalidArgument as error:
        raise in_words_of(OPTIONS | {"reference_file": f"--voice {clip}"}, error) from None
    except BrokenPipeError:  # who read our stdout has had enough; the stream is cancelled by now
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _speak(request: SpeechRequest, args: argparse.Namespace, player: str | None) -> int:
    chunks: list[AudioChunk] = []
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(SpeechClient(args.url, model=args.model, **timeouts(args)))
        stream = stack.enter_context(client.stream(request))
        progress = Progress(stream.started_at)
        stack.callback(progress.close)
        sinks: list[Sink] = []
        for chunk in stream:
            if not sinks and len(chunk.audio):
                # Only now: a request that fails leaves an older file alone, and the sample rate is the server's.
                sinks = _open_sinks(args.output, player, chunk, stack)
            for sink in sinks:
                sink.write(chunk.audio)
            chunks.append(chunk)
            progress.update(chunk)
        for sink in sinks:
            sink.close()
    _say(table(summary(timings(chunks, stream.started_at))))
    if chunks[-1].finish_reason == "length":
        _say("The speech stopped at the limit of frames, so the end of the text may be missing. Raise --max-frames.")
    if chunks[-1].finish_reason == "cancelled":
        _say("The server cancelled the stream, so the audio is incomplete.")
        return 1
    if not sinks:
        _say(
            "The voice ended without a sound. Another text, another clip, or a --temperature with another --seed may "
            "help."
        )
        return 1
    if args.output not in (None, "-"):
        _say(f"Wrote {args.output}.")
    return 0


def _open_sinks(output: str | None, player: str | None, first: AudioChunk, stack: contextlib.ExitStack) -> list[Sink]:
    sinks: list[Sink] = []
    rate, channels = first.sample_rate, first.channels
    if output is not None and (output == "-" or Path(output).suffix.lower() in RAW_SUFFIXES):
        layout = "mono" if channels == 1 else f"{channels} channels in turns"
        where = "on stdout" if output == "-" else f"in {output}"
        _say(f"Raw PCM {where}: 16-bit little-endian, {layout}, {rate} samples a second.")
        file = sys.stdout.buffer if output == "-" else open(output, "wb")  # noqa: SIM115 - closed by the stack
        if output != "-":
            stack.callback(file.close)
        sinks.append(RawWriter(file))
    elif output is not None:
        sinks.append(stack.enter_context(WavWriter(output, rate, channels)))
    if player is not None:
        playing = Player(player, rate, channels)
        stack.callback(playing.stop)
        sinks.append(playing)
    return sinks


def _voice(argument: str | None) -> tuple[str | None, Path | None]:
    """A name or a file. What looks like a path is a file, also where there is none, so that the error says so."""
    if argument is None:
        return None, None
    path = Path(argument)
    if path.is_file() or path.suffix.lower() in CLIP_SUFFIXES or os.sep in argument:
        return None, path
    return argument, None


def _text(argument: str | None) -> bytes:
    """The text as bytes. Nothing is decoded: what is not UTF-8 is for the server to refuse."""
    if argument is not None and argument != "-":
        return os.fsencode(argument)
    if sys.stdin.isatty():
        _say("Type the text, then Ctrl-D.")
    text = sys.stdin.buffer.read()
    return text[: -len(b"\n")] if text.endswith(b"\n") else text


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
