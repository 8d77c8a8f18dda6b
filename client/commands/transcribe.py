"""``python -m client transcribe``: recordings to text or subtitles, written while they arrive."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import queue
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from client.commands.options import add_server, check_suffix, check_writable, count, timeouts
from client.commands.refusal import in_words_of
from client.duration import duration
from client.errors import ConnectionFailed, InvalidArgument, SpeechError
from client.progress import TranscriptProgress, transcript_summary
from client.request import TranscriptionRequest
from client.subtitles import FORMATS, WRITERS, CueWriter
from client.sync import Transcriber
from client.tensors import read_clip
from client.transcript import TranscriptChunk, join

FAILED, REFUSED = 1, 2
#: Field of the request -> the option that it comes from.
OPTIONS = {
    "sample_rate": "--raw",
    "language": "--language",
    "context": "--context",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "seed": "--seed",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "transcribe",
        help="write down recordings",
        description="Writes down recordings. The text is printed while it arrives; subtitles and JSON need whole "
        "segments or the whole recording.",
        epilog="Several recordings are sent --jobs at a time and written in the order given: as text each under its "
        "name, as JSON a line each, as subtitles into a folder. Exit code: 0 all were written down, 1 the server or a "
        "stream failed, 2 wrong usage or a recording that was refused (the others are written), 130 interrupted.",
    )
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="wav, flac, mp3 or ogg files; absent or -: one from stdin")
    add("-o", "--output", metavar="FILE", help="a file, or a folder for a file a recording; absent or -: stdout")
    add("--format", choices=FORMATS, help="what to write (by the suffix of --output, else txt)")
    add("--language", metavar="L", help="what is spoken, as the model calls it (the model finds out, if it can)")
    add("--context", metavar="TEXT", help="words that may be spoken, names above all, for models that take them")
    add("--max-tokens", type=int, metavar="N", help="the most tokens of each window of a recording")
    add("--temperature", type=float, metavar="T", help="0 is greedy")
    add("--seed", type=int, metavar="N", help="0 and above; has an effect when the temperature is above 0")
    add("--raw", type=count, metavar="RATE", help="the recordings are raw 16-bit mono PCM of RATE samples a second")
    add("--jobs", type=count, default=4, metavar="N", help="recordings at a time (4)")
    add_server(parser, "asr", waits="60")
    parser.set_defaults(run=run)


@dataclass
class Job:
    """One recording. A thread fills ``found``: chunks, then None or the error; ``seconds`` and ``started_at`` are
    there before the first chunk."""

    name: str
    path: Path | None
    data: bytes = b""
    seconds: float | None = None
    started_at: float = 0.0
    found: queue.SimpleQueue[TranscriptChunk | BaseException | None] = field(default_factory=queue.SimpleQueue)

    def chunks(self) -> Iterator[TranscriptChunk]:
        """As they come. Raises what went wrong."""
        while (item := self.found.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item


class Output:
    """Where transcripts go. A file is opened at the first chunk: what fails before leaves an older one alone."""

    def __init__(self, output: str | None, form: str | None, names: Sequence[str]) -> None:
        self._path = None if output in (None, "-") else Path(str(output))
        self._folder = self._path is not None and (self._path.is_dir() or str(output).endswith(os.sep))
        suffix = self._path.suffix.lower().removeprefix(".") if self._path and not self._folder else ""
        self.format = form or (suffix if suffix in FORMATS else "txt")
        self.one = len(names) == 1
        self._shared: TextIO | None = None
        self._between = ""
        if self._folder:
            self._check_folder(names)
        elif self._path is not None:
            check_writable(self._path, "--output")
            if form is None:
                check_suffix(self._path, "--output", [f".{each}" for each in FORMATS], ", or choose with --format")
        if not (self.one or self._folder) and self.format in ("srt", "vtt"):
            raise InvalidArgument(
                f"is needed: {len(names)} recordings make no single {self.format} file; give a folder",
                field="--output",
            )

    def heading(self, name: str) -> str:
        """What stands above the text of a recording where there are several, after a blank line but for the first."""
        if self.format != "txt" or self.one or self._folder:
            return ""
        between, self._between = self._between, "\n"
        return f"{between}==> {name} <==\n"

    @property
    def on_terminal(self) -> bool:
        return self._path is None and sys.stdout.isatty()

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[tuple[TextIO, str]]:
        """The file for one recording, and what to call it; "" for stdout."""
        if self._path is None:
            yield sys.stdout, ""
        elif self._folder:
            path = self._file(name)
            with path.open("w", encoding="utf-8", newline="\n") as out:
                yield out, str(path)
        else:
            if self._shared is None:
                self._shared = self._path.open("w", encoding="utf-8", newline="\n")
            yield self._shared, str(self._path)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()

    def _file(self, name: str) -> Path:
        assert self._path is not None
        return self._path / f"{Path(name).stem if name != '-' else 'stdin'}.{self.format}"

    def _check_folder(self, names: Sequence[str]) -> None:
        assert self._path is not None
        if not self._path.is_dir():
            raise InvalidArgument(f"the folder {self._path} does not exist; create it first", field="--output")
        taken: dict[Path, str] = {}
        for name in names:
            path = self._file(name)
            if path in taken:
                raise InvalidArgument(f"{taken[path]} and {name} would both become {path}", field="--output")
            taken[path] = name
            check_writable(path, "--output")


def run(args: argparse.Namespace) -> int:
    names: list[str] = args.files or ["-"]
    if names.count("-") > 1:
        raise InvalidArgument("is stdin, which can be read once", field="-")
    output = Output(args.output, args.format, names)
    jobs = [Job(name, None if name == "-" else Path(name)) for name in names]
    for job in jobs:
        if job.path is None:  # here and not in the thread, which Ctrl-C would not reach
            if sys.stdin.isatty():
                raise InvalidArgument("is missing; give recordings, or one on stdin", field="FILE")
            job.data = sys.stdin.buffer.read()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        return _transcribe(jobs, output, args)
    except BrokenPipeError:  # who read our stdout has had enough; the streams are cancelled by now
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _transcribe(jobs: Sequence[Job], output: Output, args: argparse.Namespace) -> int:
    codes = set()
    with contextlib.ExitStack() as stack:
        stack.callback(output.close)
        pool = ThreadPoolExecutor(min(args.jobs, len(jobs)))
        stack.callback(pool.shutdown, cancel_futures=True)
        # Closed first: threads that wait for a chunk then end.
        client = stack.enter_context(Transcriber(args.url, model=args.model, **timeouts(args)))
        for job in jobs:
            pool.submit(_send, client, job, args)
        for job in jobs:
            try:
                codes.add(_write(job, output))
            except ConnectionFailed:
                raise  # nobody is there for the others either
            except SpeechError as error:
                if output.one:
                    raise
                named = isinstance(error, InvalidArgument) and error.field == job.name
                _say(str(error) if named else f"{job.name}: {error}")
                codes.add(REFUSED if isinstance(error, InvalidArgument) else FAILED)
    return FAILED if FAILED in codes else max(codes)


def _send(client: Transcriber, job: Job, args: argparse.Namespace) -> None:
    """One recording from beginning to end, in a thread of the pool."""
    try:
        data = job.data if job.path is None else read_clip(job.path, "FILE")
        request = TranscriptionRequest(
            data,
            language=args.language,
            context=None if args.context is None else os.fsencode(args.context),
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            seed=args.seed,
        )
        if args.raw is None:
            job.seconds = duration(data)
        else:
            request.audio = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.int16)
            request.sample_rate = args.raw
            job.seconds = len(request.audio) / args.raw
        with client.stream(request) as stream:
            job.started_at = stream.started_at
            for chunk in stream:
                job.found.put(chunk)
        job.found.put(None)
    except InvalidArgument as error:
        name = "stdin" if job.path is None else job.name
        job.found.put(in_words_of(OPTIONS | {"audio": name, "audio_file": name}, error))
    except BaseException as error:
        job.found.put(error)


def _write(job: Job, output: Output) -> int:
    """Write one transcript while it arrives. Returns the exit code."""
    chunks: list[TranscriptChunk] = []
    with contextlib.ExitStack() as stack:
        progress, path = None, ""
        for chunk in job.chunks():
            if not chunks:
                out, path = stack.enter_context(output.opened(job.name))
                out.write(output.heading(job.name))
                writer = WRITERS[output.format](out)
                unfinished = stack.enter_context(contextlib.ExitStack())
                unfinished.callback(writer.stop)  # whatever ends this: an error, Ctrl-C
                if not output.on_terminal:  # there the text itself is the progress
                    progress = TranscriptProgress(job.name, job.seconds, job.started_at)
                    stack.callback(progress.close)
            writer.write(chunk)
            chunks.append(chunk)
            if progress is not None:
                progress.update(chunk)
        unfinished.pop_all()
        transcript = join(chunks, job.started_at)
        writer.finish(job.name, transcript, job.seconds)
    _say(f"{job.name}: {transcript_summary(transcript, job.seconds)}{f'; wrote {path}' if path else ''}")
    if transcript.finish_reason == "length":
        _say(f"{job.name}: a window reached its limit of tokens, so words may be missing. Raise --max-tokens.")
    if isinstance(writer, CueWriter) and transcript.text.strip() and not writer.cues:
        _say(f"{job.name}: the server sent text without times, so there are no subtitles. Use --format txt.")
        return FAILED
    if transcript.finish_reason == "cancelled":
        _say(f"{job.name}: the server cancelled the stream, so the text is incomplete.")
        return FAILED
    return 0


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
