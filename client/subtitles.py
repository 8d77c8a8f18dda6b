"""Transcripts as files: plain text, SubRip (.srt), WebVTT (.vtt) and JSON, written while the text arrives.

All are UTF-8 with line feeds. WebVTT is a standard (https://www.w3.org/TR/webvtt1/); of SubRip there are only habits.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from abc import ABC, abstractmethod
from typing import TextIO

from client.transcript import Segment, Transcript, TranscriptChunk

FORMATS = ("txt", "srt", "vtt", "json")
#: Two lines of 42 characters, as broadcasters have it: what can be read while it is heard.
CUE_CHARACTERS = 84
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*(?=\S)")


class TranscriptWriter(ABC):
    """Writes one transcript into an open text file, which stays open."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    @abstractmethod
    def write(self, chunk: TranscriptChunk) -> None:
        """Write what the chunk brings, and push it out."""

    def finish(self, name: str, transcript: Transcript, seconds: float | None) -> None:
        """What stands at the end; here nothing. ``name`` of the recording, and its length where that is known."""
        self._out.flush()

    def stop(self) -> None:
        """The transcript has broken off: what is written stays, and a line that was begun is ended."""
        self._out.flush()

    def _push(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class TextWriter(TranscriptWriter):
    """The text alone, as it comes; no blanks before it, one line feed after it."""

    _begun = False
    _last = "\n"

    def write(self, chunk: TranscriptChunk) -> None:
        text = chunk.text if self._begun else chunk.text.lstrip()
        if text:
            self._begun, self._last = True, text[-1]
            self._push(text)

    def finish(self, name: str, transcript: Transcript, seconds: float | None) -> None:
        self.stop()

    def stop(self) -> None:
        if self._last != "\n":
            self._last = "\n"
            self._push("\n")


class CueWriter(TranscriptWriter):
    """What SubRip and WebVTT share: cues of at most CUE_CHARACTERS in the order of their beginnings, each of at least a
    millisecond. A segment is one cue, or several: see ``split``."""

    mark: str

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self.cues = 0
        self._start = 0

    def write(self, chunk: TranscriptChunk) -> None:
        for segment in chunk.segments:
            for cue in split(segment):
                self.cues += 1
                # A cue must not begin before the one above it, and must end after its own beginning.
                self._start = max(self._start, milliseconds(cue.start))
                end = max(self._start + 1, milliseconds(cue.end))
                times = f"{timestamp(self._start, self.mark)} --> {timestamp(end, self.mark)}"
                self._push(f"{self.head()}{times}\n{self.escape(cue.text)}\n\n")

    @abstractmethod
    def head(self) -> str:
        """What stands above the times of cue number ``self.cues``."""

    @abstractmethod
    def escape(self, text: str) -> str:
        """The text of a cue, one line, so that a reader shows it as it is."""


class SrtWriter(CueWriter):
    """SubRip: numbered cues, a comma before the milliseconds. The format has no escapes: players may take ``<i>`` as
    a tag, and ``-->`` becomes ``->``, which no reader takes for a line of times."""

    mark = ","

    def head(self) -> str:
        return f"{self.cues}\n"

    def escape(self, text: str) -> str:
        while "-->" in text:
            text = text.replace("-->", "->")
        return text


class VttWriter(CueWriter):
    """WebVTT: a header, a point before the milliseconds, ``&``, ``<`` and ``>`` escaped, so that ``-->`` is, too."""

    mark = "."

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._push("WEBVTT\n\n")

    def head(self) -> str:
        return ""

    def escape(self, text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class JsonWriter(TranscriptWriter):
    """One object on one line, when all has come: several recordings make a file of JSON lines."""

    def write(self, chunk: TranscriptChunk) -> None:
        pass

    def finish(self, name: str, transcript: Transcript, seconds: float | None) -> None:
        found = {
            "file": name,
            "text": transcript.text.strip(),
            "language": transcript.language,
            "duration": seconds,
            "finish_reason": transcript.finish_reason,
            "segments": [
                {name: value for name, value in vars(segment).items() if value is not None}
                for segment in transcript.segments
            ],
        }
        self._push(json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")


WRITERS: dict[str, type[TranscriptWriter]] = {
    "txt": TextWriter,
    "srt": SrtWriter,
    "vtt": VttWriter,
    "json": JsonWriter,
}


def split(segment: Segment) -> list[Segment]:
    """The segment in pieces of one line and at most CUE_CHARACTERS, none for one without text. They end where sentences
    end, if these are not too long. The server gives times to segments alone: those inside are estimated, in proportion
    to the characters before them."""
    pieces: list[str] = []
    for sentence in _SENTENCE.split(one_line(segment.text)):
        for part in textwrap.wrap(sentence, CUE_CHARACTERS, break_on_hyphens=False):
            if pieces and len(pieces[-1]) + 1 + len(part) <= CUE_CHARACTERS:
                pieces[-1] += f" {part}"
            else:
                pieces.append(part)
    characters = sum(map(len, pieces))
    cues, before = [], 0
    for piece in pieces:
        start, end = (
            segment.start + (segment.end - segment.start) * (at / characters) for at in (before, before + len(piece))
        )
        before += len(piece)
        cues.append(Segment(start, end, piece))
    return cues


def milliseconds(seconds: float) -> int:
    """Rounded to whole milliseconds, 0 for what is below. Raises ValueError for what is not finite."""
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is not a time; a cue needs finite seconds")
    return max(0, round(1000 * seconds))


def timestamp(milliseconds: int, mark: str) -> str:
    """``HH:MM:SS,mmm`` with ``mark`` before the milliseconds; hours have two digits or as many as they need."""
    seconds, thousandths = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{mark}{thousandths:03}"


def one_line(text: str) -> str:
    """Every run of white space, line breaks of all kinds above all, as one blank: an empty line would end a cue. NUL,
    which WebVTT readers replace, becomes U+FFFD."""
    return " ".join(text.replace("\0", "\ufffd").split())
