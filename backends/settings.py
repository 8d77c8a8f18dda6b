"""A stage's parameters: documented in its config.pbtxt, typed here.

Each stage has a frozen dataclass of its parameters with defaults; ``config.pbtxt`` gives values for all of them, and
the environment variable ``VOXSTAGE_OVERRIDES`` (JSON ``{"stage": {"key": "value"}}``, written by ``serve.py --set``)
replaces some.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from backends.errors import InvalidArgument

T = TypeVar("T")

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

    Raises InvalidArgument for an unknown key, a value of the wrong type, or one below a field's ``minimum`` in its
    metadata.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    types = get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, text in {**parameters, **(extra or {})}.items():
        if key not in fields:
            raise InvalidArgument(
                f"{stage}.{key}", f"is not a parameter of {stage}; it has {', '.join(sorted(fields))}"
            )
        values[key] = _parse(f"{stage}.{key}", text, types[key], fields[key].metadata)
    return cls(**values)


def _parse(name: str, text: str, kind: type, metadata: Mapping[str, Any]) -> Any:
    word = text.strip()
    if kind is bool:
        if word.lower() not in _TRUE | _FALSE:
            raise InvalidArgument(name, f"{text!r} is neither true nor false")
        return word.lower() in _TRUE
    if kind is str:
        choices = metadata.get("choices")
        if choices and word not in choices:
            raise InvalidArgument(name, f"{text!r} is not one of {', '.join(choices)}")
        return word
    try:
        value = kind(word)
    except ValueError:
        raise InvalidArgument(name, f"{text!r} is not of type {kind.__name__}") from None
    low, high = metadata.get("minimum", -math.inf), metadata.get("maximum", math.inf)
    if not low <= value <= high:
        raise InvalidArgument(name, f"{word} is outside {low}...{high}")
    return value


def parameter(default: Any, **limits: Any) -> Any:
    """A dataclass field with ``minimum`` / ``maximum`` (numbers) or ``choices`` (strings)."""
    return dataclasses.field(default=default, metadata=limits)
