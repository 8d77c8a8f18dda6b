"""A stage's parameters: documented in its config.pbtxt, typed here.

Each stage has a frozen dataclass of its parameters with defaults; ``config.pbtxt`` gives values for all of them, and
the environment variable ``VOXSTAGE_OVERRIDES`` (JSON ``{"stage": {"key": "value"}}``, written by ``serve.py --set``)
replaces some.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from backends.errors import InvalidArgument

T = TypeVar("T")

#: What a parameter that names a device may hold, and how to say it. The stage finds out whether it is there.
DEVICE = (re.compile(r"auto|cpu|cuda(:\d+)?"), "auto, cpu, cuda or cuda:N")

_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


def home() -> Path:
    """The repository root, which relative checkpoint paths start from."""
    return Path(os.environ.get("VOXSTAGE_HOME") or Path(__file__).resolve().parents[1])


def overrides(stage: str) -> dict[str, str]:
    """What ``VOXSTAGE_OVERRIDES`` says for one stage."""
    everything = json.loads(os.environ.get("VOXSTAGE_OVERRIDES") or "{}")
    return {str(key): str(value) for key, value in everything.get(stage, {}).items()}


def load_settings(cls: type[T], stage: str, parameters: Mapping[str, str], extra: Mapping[str, str] | None = None) -> T:
    """The dataclass ``cls`` from ``parameters`` (as in config.pbtxt) with ``extra`` on top.

    Raises InvalidArgument naming ``stage.key`` for an unknown key, a value of the wrong type or out of the field's
    limits, and values that do not fit together.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    types = get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, text in {**parameters, **(extra or {})}.items():
        if key not in fields:
            raise InvalidArgument(f"{stage}.{key}", f"is not a parameter of {stage}; {hint(key, fields)}")
        values[key] = _parse(f"{stage}.{key}", text, types[key], fields[key].metadata)
    try:
        return cls(**values)
    except InvalidArgument as error:  # the class knows its fields, not the stage
        raise InvalidArgument(f"{stage}.{error.field}", error.problem) from None


def hint(name: str, known: Iterable[str], all_of_them: str = "it has") -> str:
    """What to say after a name that is not ``known``: the nearest one where one is near, else all."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f"did you mean {near[0]}?" if near else f"{all_of_them} {', '.join(names) or 'none'}"


def _parse(name: str, text: str, kind: type, metadata: Mapping[str, Any]) -> Any:
    word = text.strip()
    if kind is bool:
        if word.lower() not in _TRUE | _FALSE:
            raise InvalidArgument(name, f"{text!r} is neither true nor false")
        return word.lower() in _TRUE
    if kind is str:
        choices, form = metadata.get("choices"), metadata.get("form")
        if choices and word not in choices:
            raise InvalidArgument(name, f"{text!r} is not one of {', '.join(choices)}")
        if form and not form[0].fullmatch(word):
            raise InvalidArgument(name, f"{text!r} is not {form[1]}")
        if not word:
            raise InvalidArgument(name, "'' is not allowed; give some text")
        return word
    low, high = metadata.get("minimum", -math.inf), metadata.get("maximum", math.inf)
    try:
        value = kind(word)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise InvalidArgument(name, f"{text!r} is not {noun}{_limits(low, high)}") from None
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidArgument(name, f"{word} is not allowed; give a number{_limits(low, high)}")
    return value


def _limits(low: float, high: float) -> str:
    """`` of 1 or more``, `` from 0.1 to 1``, or nothing where there is no limit."""
    if math.isfinite(high):
        return f" from {low:g} to {high:g}"
    return f" of {low:g} or more" if math.isfinite(low) else ""


def parameter(default: Any, **limits: Any) -> Any:
    """A dataclass field with ``minimum`` / ``maximum`` (numbers), ``choices`` or a ``form`` like DEVICE (strings)."""
    return dataclasses.field(default=default, metadata=limits)
