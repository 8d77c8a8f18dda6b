"""Text out of tokens while they are written: never half a character, and in all what decoding at once gives."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence


class TextStream:
    """One stream. Tokens of a byte-level vocabulary are pieces of UTF-8; what has no end yet is kept back."""

    def __init__(self, pieces: Mapping[int, bytes], strip: bool = True) -> None:
        """``pieces``: the bytes of every token that is text; others (control tokens) are left out. ``strip``: no white
        space at the start and at the end of the whole.
        """
        self._pieces, self._strip = pieces, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._started, self._held = False, ""

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that ``tokens`` complete; may be empty."""
        return self._give(self._decoder.decode(b"".join(self._pieces.get(token, b"") for token in tokens)))

    def end(self) -> str:
        """What was kept back: a character that nobody finished becomes a replacement character."""
        return self._give(self._decoder.decode(b"", final=True))

    def _give(self, text: str) -> str:
        if not self._strip:
            return text
        # White space waits for what follows it: at the end of the whole nothing does.
        text = self._held + text
        if not self._started:
            text = text.lstrip()
        kept = text.rstrip()
        self._held, self._started = text[len(kept) :], self._started or bool(kept)
        return kept
