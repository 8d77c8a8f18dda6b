"""Word errors on recorded human speech: our models in process, our server, and transformers, text for text.

    python -m benchmarks.asr_words --data DIR                        in process, and transformers
    python -m benchmarks.asr_words --data DIR --url localhost:8001   and the server there
    python -m benchmarks.asr_words --data DIR --url localhost:8001 --only server

The server must serve the pipeline asr with the same checkpoint. ``benchmarks/asr_speech.py`` says where the recordings
in DIR come from. Each set is written down by transformers, and by ours one at a time and 32 at once; "equal" counts
texts that are those of transformers, letter for letter. Errors are words substituted, deleted and inserted, after the
English normaliser that Whisper's results are given with (here without its table of spellings). *recording*: all clips
one after another as one recording, in the windows that ``backends/asr/windows.py`` makes of it, and, to compare, cut
every 30 s; there the whole text counts, and equality by window. The server gets the recording in one piece, cuts it by
itself, and must give what transformers gives of the windows, joined by spaces.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.asr.default_checkpoint import default_checkpoint
from backends.asr.windows import split
from benchmarks.asr_engines import InProcess, Reference, Samples, Server
from benchmarks.asr_speech import RATE, Clip, librivox, prompts
from benchmarks.sitting import sitting
from tests.judge import edits

ROOT = Path(__file__).resolve().parents[1]
_WINDOW = 30.0
#: For every passage its texts.
Write = Callable[[Sequence["Passage"]], list[list[str]]]


@dataclass(frozen=True)
class Passage:
    """Clips whose texts, joined, are to be ``said``."""

    said: str
    clips: list[Samples]


def by_clip(write: Callable[[Sequence[Samples]], list[str]]) -> Write:
    """A writer of passages from one of clips."""

    def passages_of(group: Sequence[Passage]) -> list[list[str]]:
        texts = iter(write([clip for passage in group for clip in passage.clips]))
        return [[next(texts) for _ in passage.clips] for passage in group]

    return passages_of


def in_one_piece(write: Callable[[Sequence[Samples]], list[str]]) -> Write:
    """A writer that hears the clips of a passage as one."""
    return lambda group: [[text] for text in write([np.concatenate(passage.clips) for passage in group])]


def passages(clips: Sequence[Clip]) -> list[Passage]:
    """One clip each."""
    return [Passage(clip.said, [clip.samples]) for clip in clips]


def recording(clips: Sequence[Clip], quiet: bool) -> list[Passage]:
    """All clips as one recording, in windows: cut where it is quiet, or every 30 s."""
    samples = np.concatenate([clip.samples for clip in clips])
    if quiet:
        windows = [samples[window.start : window.end] for window in split(samples, _WINDOW) if not window.silent]
    else:
        windows = [samples[at : at + int(_WINDOW * RATE)] for at in range(0, len(samples), int(_WINDOW * RATE))]
    return [Passage(" ".join(clip.said for clip in clips), windows)]


def normaliser() -> Callable[[str], list[str]]:
    """From a text to its words: lower case, no punctuation, numbers in figures, contractions and titles spelt out."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    normalise = EnglishTextNormalizer({})
    return lambda text: str(normalise(text)).split()


def count_errors(said: Sequence[str], heard: Sequence[str]) -> tuple[int, int]:
    """Word errors, and words said, of texts side by side."""
    words = normaliser()
    pairs = [(words(one), words(other)) for one, other in zip(said, heard, strict=True)]
    return sum(edits(one, other) for one, other in pairs), sum(len(one) for one, _ in pairs)


def judge(name: str, group: Sequence[Passage], writers: dict[str, Write]) -> Iterator[dict[str, Any]]:
    """A row of the table for every writer; the first is the one that the others are held against."""
    wanted: list[list[str]] = []
    for writer, write in writers.items():
        texts = write(group)
        wanted = wanted or texts
        pairs = [
            pair
            for ones, others in zip(wanted, texts, strict=True)
            for pair in (
                zip(ones, others, strict=True) if len(ones) == len(others) else [(" ".join(ones), " ".join(others))]
            )
        ]
        errors, words = count_errors([passage.said for passage in group], [" ".join(each) for each in texts])
        yield {
            "set": name,
            "writer": writer,
            "seconds": sum(len(clip) for passage in group for clip in passage.clips) / RATE,
            "texts": len(pairs),
            "equal": sum(one == other for one, other in pairs),
            "errors": errors,
            "words": words,
            "word_error_rate": errors / words,
            "differ": [{"transformers": one, "ours": other} for one, other in pairs if one != other],
        }


def main() -> None:
    """One table, one file."""
    parser = argparse.ArgumentParser(description="word errors on recorded human speech")
    parser.add_argument("--data", type=Path, required=True, help="folder where the packages were unpacked")
    parser.add_argument("--checkpoint", type=Path, help="a Whisper as transformers has it; default: tiny.en")
    parser.add_argument("--url", help="host:port of gRPC of a server with the pipeline asr and the same checkpoint")
    parser.add_argument("--only", default="", metavar="WORD", help="of ours, those whose name has this word in it")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in this process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.checkpoint or default_checkpoint(ROOT)
    many = options.concurrency
    ours, reference = InProcess(folder, many), Reference(folder)
    writers = {
        "transformers": by_clip(reference.write),
        "in process, 1 at once": by_clip(lambda clips: ours.write(clips, 1)),
        f"in process, {many} at once": by_clip(lambda clips: ours.write(clips, many)),
    }
    if options.url:
        server = Server(options.url)
        writers["server, 1 at once"] = in_one_piece(lambda clips: server.write(clips, 1))
        writers[f"server, {many} at once"] = in_one_piece(lambda clips: server.write(clips, many))
    writers = {name: write for name, write in writers.items() if name == "transformers" or options.only in name}
    books, phone = librivox(options.data), prompts(options.data, options.prompts)
    groups = {
        "librivox": passages(books),
        "prompts": passages(phone),
        "recording, cut where quiet": recording([*books, *phone], quiet=True),
        "recording, cut every 30 s": recording([*books, *phone], quiet=False),
    }
    rows = []
    for name, group in groups.items():
        # A server cuts where it is quiet.
        fit = {each: write for each, write in writers.items() if "every" not in name or "server" not in each}
        for row in judge(name, group, fit):
            rows.append(row)
            print(
                f"{name:27s} {row['writer']:23s} {row['equal']:4d} of {row['texts']:<4d} equal "
                f"{row['errors']:4d} errors in {row['words']:5d} words: {100 * row['word_error_rate']:5.2f} %",
                flush=True,
            )
            for pair in row["differ"]:
                print(f"    transformers: {pair['transformers']!r}\n    ours:         {pair['ours']!r}")
    ours.close()
    if options.json:
        about = sitting(argparse.Namespace(**vars(options) | {"data": "speech", "device": "cpu"}))
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
