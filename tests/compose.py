"""docker-compose.yml as Compose reads it: anchors merged, variables filled in, commands split."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

COMPOSE_FILE = ROOT / "docker-compose.yml"
#: The services that run ``serve.py``.
SERVERS = ("voxstage", "voxstage-cpu")

_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<rule>:?[-?+])(?P<text>[^{}$]*))?\})"
)
_TIME = re.compile(r"(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?")


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Fill in ``$NAME`` and ``${NAME}``, also with ``:-``, ``-``, ``:?``, ``?``, ``:+``, ``+``; ``$$`` is a dollar.

    See "Interpolation" in the Compose Specification. Stricter than Compose: a variable without value and default, which
    Compose replaces by nothing with a warning, is a KeyError; other dollars (nested forms too) are a ValueError.
    """

    def fill(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name, rule, text = match["bare"] or match["name"], match["rule"] or "", match["text"] or ""
        value = variables.get(name)
        there = value is not None and not (rule.startswith(":") and value == "")
        if rule.endswith("+"):
            return text if there else ""
        if value is not None and there:
            return value
        if rule.endswith("-"):
            return text
        raise KeyError(f"{name} has no value{': ' + text if text else ''}")

    rest = _VARIABLE.sub("", text)
    if "$" in rest:
        raise ValueError(f"{text!r} has a dollar that starts no variable")
    return _VARIABLE.sub(fill, text)


def load(variables: Mapping[str, str] | None = None, path: Path = COMPOSE_FILE) -> dict[str, Any]:
    """The file with every value filled in; keys are left alone, as Compose leaves them."""
    filled = _fill(yaml.safe_load(path.read_text(encoding="utf-8")), variables or {})
    assert isinstance(filled, dict)
    return filled


def variables_of(path: Path = COMPOSE_FILE) -> dict[str, str]:
    """Variable → its default. A variable that has two is a ValueError."""
    found: dict[str, str] = {}
    # Without comments: what they say of variables is prose.
    for match in _VARIABLE.finditer(re.sub(r"(?m)(?:^|\s)#.*$", "", path.read_text(encoding="utf-8"))):
        if match["name"] and found.setdefault(match["name"], match["text"] or "") != (match["text"] or ""):
            raise ValueError(f"{match['name']} has two defaults: {found[match['name']]!r} and {match['text']!r}")
    return found


def words(command: str | list[str]) -> list[str]:
    """A ``command`` as the container gets it."""
    return shlex.split(command) if isinstance(command, str) else command


def healthcheck(service: Mapping[str, Any]) -> list[str]:
    """The healthcheck's command; it is of the form that runs without a shell."""
    kind, *command = service["healthcheck"]["test"]
    assert kind == "CMD"
    return command


def seconds(text: str) -> int:
    """``1h2m3s`` in seconds."""
    match = _TIME.fullmatch(text)
    assert match is not None and text, f"{text!r} is no time"
    return sum(int(match[unit] or 0) * factor for unit, factor in (("h", 3600), ("m", 60), ("s", 1)))


def _fill(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return interpolate(value, variables)
    if isinstance(value, list):
        return [_fill(entry, variables) for entry in value]
    if isinstance(value, dict):
        return {key: _fill(entry, variables) for key, entry in value.items()}
    return value
