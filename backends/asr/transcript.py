"""One transcript out of windows that are decoded side by side: text strictly in order, joined, with its times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

#: The first character of the scripts that are written without spaces between words.
_NO_SPACES = 0x2E80

#: {"start", "end", "text"} and what a model adds to it; times in seconds.
Segment = dict[str, Any]


class Reader(Protocol):
    """Turns the tokens of one window into text while they are written. ``language``: a code, "" until it is known."""

    language: str

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that ``tokens`` complete; may be empty."""
        ...

    def end(self) -> str:
        """What was kept back."""
        ...

    def segments(self, begin: float, end: float) -> list[Segment]:
        """After :meth:`end`: who said what when, for a window from ``begin`` to ``end`` seconds of the audio."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """What one response says. ``window``: whose request it answers; ``closes``: with its last response."""

    window: int
    text: str
    segments: list[Segment]
    language: str
    index: int
    closes: bool
    final: bool = False
    finish_reason: str = ""
    error: str = ""


@dataclass(slots=True)
class _Window:
    reader: Reader | None
    begin: float
    end: float
    last: bool
    text: list[str] = field(default_factory=list)
    ended: str = ""
    error: str = ""


class Transcript:
    """Windows come and end in any order; pieces leave in the order of the windows. Not for several threads.

    The window whose turn it is speaks at once, others are kept until their turn. A window that ended with an error ends
    the transcript when its turn comes, so everything before it has been said.
    """

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}
        self._turn, self._index = 0, 0
        self._tail, self._spoken = "", -1  # the last character said, and by which window
        self._language, self._cut = "", False
        self.over = False

    @property
    def turn(self) -> int:
        """The window that speaks."""
        return self._turn

    def open(self, window: int, reader: Reader | None, begin: float, end: float, last: bool) -> None:
        """A window of the audio from ``begin`` to ``end`` seconds; ``last``: none follows. Without a reader it ends
        without text.
        """
        self._windows[window] = _Window(reader, begin, end, last)

    def feed(self, window: int, tokens: Sequence[int]) -> list[Piece]:
        """Tokens that ``window`` wrote -> what can be said now."""
        held = self._windows[window]
        assert held.reader is not None
        held.text.append(held.reader.feed(tokens))
        return self._say()

    def finish(self, window: int, reason: str, error: str = "", tokens: Sequence[int] = ()) -> list[Piece]:
        """``window`` ended with ``tokens`` for ``reason`` (stop, length, cancelled, or error with an ``error``) -> what
        can be said.
        """
        held = self._windows[window]
        if held.reader is not None:
            held.text += [held.reader.feed(tokens)] if tokens else []
            held.text.append(held.reader.end())
        held.ended, held.error = reason, error
        return self._say()

    def _say(self) -> list[Piece]:
        pieces: list[Piece] = []
        while not self.over and (held := self._windows.get(self._turn)) is not None:
            text = self._joined("".join(held.text))
            held.text.clear()
            if not held.ended:
                if text:
                    pieces.append(self._piece(held, text, closes=False))
                break
            pieces.append(self._piece(held, text, closes=True))
            del self._windows[self._turn]
            self._turn += 1
        return pieces

    def _piece(self, held: _Window, text: str, closes: bool) -> Piece:
        reader = held.reader
        self._language = (reader.language if reader is not None else "") or self._language
        self._cut = self._cut or (closes and held.ended == "length")
        broken = "error" if held.error else "cancelled" if held.ended == "cancelled" else ""
        self.over = closes and (held.last or bool(broken))
        segments = reader.segments(held.begin, held.end) if closes and reader is not None and not broken else []
        reason = (broken or ("length" if self._cut else "stop")) if self.over else ""
        piece = Piece(self._turn, text, segments, self._language, self._index, closes, self.over, reason, held.error)
        self._index += 1
        return piece

    def _joined(self, text: str) -> str:
        """``text`` with a space in front where a new window goes on in a script that has them."""
        if not text:
            return text
        if self._tail and self._spoken != self._turn and not _spaceless(self._tail, text[0]):
            text = " " + text
        self._tail, self._spoken = text[-1], self._turn
        return text


def _spaceless(before: str, after: str) -> bool:
    return ord(before) >= _NO_SPACES or ord(after) >= _NO_SPACES or before.isspace() or after.isspace()
