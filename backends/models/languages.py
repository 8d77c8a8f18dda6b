"""The language that a prompt names. Reads JSON alone, because ``serve.py`` asks before it starts anything."""

from __future__ import annotations

import difflib
from pathlib import Path

from backends.errors import InvalidArgument
from backends.json_file import read_json
from backends.models.generation_defaults import read_generation_defaults


def check_language(folder: Path, language: str, field: str = "language") -> None:
    """Raise InvalidArgument for ``field`` unless the checkpoint in ``folder`` can be asked to speak ``language``.

    A checkpoint may name its languages, in the list ``languages`` of ``generation_defaults.json``; then only those are
    good. Without it (public MOSS-TTS checkpoints take the name of any language as free text) everything is good that
    stays inside its field of the prompt: one line, and no control token of the tokenizer.
    """
    known = read_generation_defaults(folder).get("languages")
    if known is not None:
        if language not in known:
            near = difflib.get_close_matches(language.casefold(), [each.casefold() for each in known], n=1)
            meant = f"; did you mean {next(each for each in known if each.casefold() == near[0])}?" if near else ""
            raise InvalidArgument(field, f"{language!r} is not one of {', '.join(known)}{meant}")
        return
    if len(language.splitlines()) != 1:
        raise InvalidArgument(field, f"{language!r} is not one line")
    for token in read_json(folder / "tokenizer.json").get("added_tokens", []):
        if token.get("special") and token["content"] in language:
            raise InvalidArgument(field, f"{language!r} holds the control token {token['content']}")
