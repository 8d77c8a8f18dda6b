"""Text that can be spoken."""

from __future__ import annotations

import unicodedata

from backends.errors import InvalidArgument


def check_text(text: str, field: str = "text") -> None:
    """Raise InvalidArgument unless ``text`` holds something that can be spoken: a letter or a digit, and no NUL."""
    if "\0" in text:
        raise InvalidArgument(field, f"holds a NUL character at index {text.index(chr(0))}; it cannot be spoken")
    if not text.strip():
        raise InvalidArgument(field, "is empty" if not text else "holds nothing but white space")
    if not any(unicodedata.category(character)[0] in "LN" for character in text):
        shown = text if len(text) <= 20 else f"{text[:20]}..."
        raise InvalidArgument(field, f"{shown!r} holds no letter and no digit, so there is nothing to speak")
