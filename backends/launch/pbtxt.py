"""A reader for the part of protobuf's text format that a ``config.pbtxt`` uses.

The launcher must know a stage's name and parameters before Triton runs, and must not need protobuf for that. Format:
https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Union

Value = Union[str, "Message"]
#: Field name → every value it was given, in the order of the file.
Message = dict[str, list[Value]]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<word>[A-Za-z0-9_.+\-]+)
      | (?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE,
)


class PbtxtError(ValueError):
    """The text is not in protobuf's text format. The message names the line."""


def parse_pbtxt(text: str) -> Message:
    """Read ``text``. Scalars come back as strings (unquoted, escapes resolved), messages as dicts of lists."""
    tokens = list(_tokens(text))
    message, end = _message(tokens, 0, closing=None)
    if end != len(tokens):
        raise PbtxtError(f"line {tokens[end][2]}: unexpected {tokens[end][1]!r}")
    return message


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PbtxtError(f"line {text.count(chr(10), 0, position) + 1}: unexpected {text[position]!r}")
        kind = match.lastgroup or ""
        if kind != "skip":
            yield kind, match.group(), text.count("\n", 0, position) + 1
        position = match.end()


def _message(tokens: list[tuple[str, str, int]], at: int, closing: str | None) -> tuple[Message, int]:
    message: Message = {}
    while at < len(tokens) and tokens[at][1] != closing:
        kind, name, line = tokens[at]
        if kind != "word":
            raise PbtxtError(f"line {line}: expected a field name, not {name!r}")
        at += 1
        if at < len(tokens) and tokens[at][1] == ":":
            at += 1
        values, at = _values(tokens, at, line)
        message.setdefault(name, []).extend(values)
        while at < len(tokens) and tokens[at][1] in ",;":
            at += 1
    return message, at


def _values(tokens: list[tuple[str, str, int]], at: int, line: int) -> tuple[list[Value], int]:
    """One value, or the values of a list in brackets."""
    if at >= len(tokens):
        raise PbtxtError(f"line {line}: the text ends where a value is due")
    kind, token, line = tokens[at]
    if token == "[":
        values: list[Value] = []
        at += 1
        while at < len(tokens) and tokens[at][1] != "]":
            more, at = _values(tokens, at, line)
            values += more
            if at < len(tokens) and tokens[at][1] == ",":
                at += 1
        return values, _after(tokens, at, "]", line)
    if token in "{<":
        end = "}" if token == "{" else ">"
        message, at = _message(tokens, at + 1, closing=end)
        return [message], _after(tokens, at, end, line)
    if kind == "word":
        return [token], at + 1
    if kind == "string":
        text = ""
        while at < len(tokens) and tokens[at][0] == "string":  # neighbouring strings are one string
            text += ast.literal_eval(tokens[at][1])
            at += 1
        return [text], at
    raise PbtxtError(f"line {line}: expected a value, not {token!r}")


def _after(tokens: list[tuple[str, str, int]], at: int, closing: str, line: int) -> int:
    if at >= len(tokens):
        raise PbtxtError(f"line {line}: nothing closes what opens here (expected {closing!r})")
    return at + 1
