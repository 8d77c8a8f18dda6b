"""What ``python -m client bench`` asks for in its requests: the options of speech and of transcription."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from client.bench import speech_tables, transcript_tables
from client.bench.clips import as_wav, joined, read_clips
from client.bench.report import Tables
from client.bench.speech import SpeechWorkload
from client.bench.texts import everyday, read_texts
from client.bench.transcripts import TranscriptWorkload
from client.bench.workload import Workload
from client.commands.options import count, seconds
from client.errors import InvalidArgument
from client.request import FORMATS, SpeechRequest, TranscriptionRequest

#: What can be measured, and the tables that it prints.
KINDS: dict[str, Tables] = {"tts": speech_tables, "asr": transcript_tables}
#: Options, by their names in the namespace, that mean nothing to the other one.
ONLY = {
    "tts": ("texts", "top_p", "top_k", "max_frames", "first_chunk_frames", "chunk_frames", "format"),
    "asr": ("clips", "length", "unseen", "language", "context", "max_tokens"),
}


def add_requests(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of the command."""
    both = parser.add_argument_group("requests")
    both.add_argument("--seed", type=int, default=0, metavar="N", help="seed of each level's first request (0)")
    both.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    add = parser.add_argument_group("requests of tts").add_argument
    add("--texts", type=Path, metavar="FILE", help="one text a line (16 everyday sentences)")
    add("--top-p", type=float, metavar="P", help="above 0, up to 1")
    add("--top-k", type=int, metavar="K", help="0 is off")
    add("--max-frames", type=int, metavar="N", help="the most frames to say")
    add("--first-chunk-frames", type=int, metavar="N", help="frames in the first chunk")
    add("--chunk-frames", type=int, metavar="N", help="frames in the later chunks")
    add("--format", choices=FORMATS, help="what the server sends (s16)")
    add = parser.add_argument_group("requests of asr").add_argument
    add("--clips", type=Path, metavar="PATH", help="a folder of wav, flac, mp3 or ogg files, or one (voices/*.flac)")
    add("--length", type=seconds, metavar="S", help="recordings of S seconds, made of the clips (needs soundfile)")
    add("--unseen", action="store_true", help="no recording twice, in a few faint samples (needs soundfile)")
    add("--language", metavar="L", help="what is spoken (the model finds out, if it can)")
    add("--context", metavar="TEXT", help="words that may be spoken")
    add("--max-tokens", type=count, metavar="N", help="the most tokens of each window")


def make_workload(args: argparse.Namespace) -> Workload[Any, Any]:
    """The requests that the options ask for. Raises InvalidArgument for one that means nothing here."""
    for what, names in ONLY.items():
        for name in names:
            if what != args.what and getattr(args, name) not in (None, False):
                raise InvalidArgument(f"is for bench {what}; this is bench {args.what}", field=option(name))
    return _speech(args) if args.what == "tts" else _transcripts(args)


def option(name: str) -> str:
    """``--top-p`` for ``top_p``."""
    return f"--{name.replace('_', '-')}"


def source(args: argparse.Namespace) -> str:
    """Where the texts or clips came from, for JSON; of a path the last part, which says nothing of the machine."""
    given = args.texts if args.what == "tts" else args.clips
    return "built in" if given is None else os.path.basename(os.path.normpath(given))


def _speech(args: argparse.Namespace) -> SpeechWorkload:
    texts = everyday() if args.texts is None else read_texts(args.texts)
    request = SpeechRequest(
        b"",
        seed=args.seed,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        max_frames=args.max_frames,
        format=args.format or "s16",
        first_chunk_frames=args.first_chunk_frames,
        chunk_frames=args.chunk_frames,
    )
    return SpeechWorkload(texts, request)


def _transcripts(args: argparse.Namespace) -> TranscriptWorkload:
    clips = read_clips(args.clips)
    if args.length is not None:
        clips = joined(clips, args.length)
    elif args.unseen:
        clips = as_wav(clips, "--unseen")
    request = TranscriptionRequest(
        b"",
        language=args.language,
        context=args.context,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
    )
    return TranscriptWorkload(clips, request, unseen=args.unseen)
