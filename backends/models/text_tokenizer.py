"""The tokenizer of a text model, twice: one for the template, one for what a user writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from backends.errors import CheckpointError, InvalidArgument
from backends.json_file import read_json

_NUL = "\0"


class TextTokenizer:
    """``tokenizer.json`` of a checkpoint. A user's text is never read as a control token, whatever it spells."""

    def __init__(self, folder: Path) -> None:
        specification = read_json(folder / "tokenizer.json")
        self._source = f"{folder}/tokenizer.json"
        self._template = Tokenizer.from_str(json.dumps(specification))
        self._plain = Tokenizer.from_str(json.dumps(_spelt_apart(specification)))
        self.control = {token["content"]: token["id"] for token in specification["added_tokens"]}

    def token(self, content: str) -> int:
        """The id of one control token. Raises CheckpointError where the checkpoint has none."""
        found = self.control.get(content)
        if found is None:
            raise CheckpointError(f"{self._source}: the token {content} is missing")
        return int(found)

    def template(self, text: str) -> list[int]:
        """Ids of a fixed part of a prompt, control tokens included."""
        return list(self._template.encode(text, add_special_tokens=False).ids)

    def plain(self, text: str, field: str) -> list[int]:
        """Ids of what a user wrote into ``field``: none of them is a control token."""
        if _NUL in text:
            raise InvalidArgument(field, f"holds a NUL character at index {text.index(_NUL)}")
        if not text:
            return []
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def pieces(self) -> dict[int, bytes]:
        """The bytes of every token that is text, for :class:`backends.models.text_stream.TextStream`.

        Byte-level vocabularies spell each byte as one printable character (Radford et al. 2019). Raises CheckpointError
        for a vocabulary of another kind.
        """
        control, found = set(self.control.values()), {}
        for token, number in self._template.get_vocab(with_added_tokens=False).items():
            if number not in control:
                if any(character not in _BYTES for character in token):
                    raise CheckpointError(
                        f"{self._source}: token {number} is {token!r}, not bytes spelled as characters"
                    )
                found[number] = bytes(_BYTES[character] for character in token)
        return found

    def text(self, ids: Sequence[int], keep_control: bool = False) -> str:
        """The text of ``ids``, without control tokens unless they are to be kept."""
        return str(self._template.decode(list(ids), skip_special_tokens=not keep_control))


def _byte_spelling() -> dict[str, int]:
    """Character -> byte: printable bytes stand for themselves, the others for the characters from 256 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_spelling()


def _spelt_apart(specification: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer, with every control token spelled in a way that no text can contain.

    Leaving them out would not do: the library numbers added tokens by position.
    """
    tokens = [{**token, "content": f"{_NUL}{token['id']}", "special": False} for token in specification["added_tokens"]]
    return {**specification, "added_tokens": tokens, "post_processor": None}
