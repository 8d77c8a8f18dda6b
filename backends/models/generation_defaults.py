"""``generation_defaults.json`` of a voice checkpoint, checked. Reads JSON alone: ``serve.py`` asks for it first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from backends.errors import CheckpointError
from backends.json_file import read_json
from backends.settings import hint

FILE = "generation_defaults.json"


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _languages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) and name for name in value)


_Rule = tuple[Callable[[Any], bool], str]
_FLAG: _Rule = (lambda value: isinstance(value, bool), "true or false")
_TEMPERATURE: _Rule = (lambda value: _number(value) and 0 <= value <= 10, "a number from 0 to 10")
_TOP_P: _Rule = (lambda value: _number(value) and 0 < value <= 1, "a number above 0, up to 1")
_TOP_K: _Rule = (lambda value: _whole(value) and 0 <= value < 2**31, "a whole number of 0 or more, below 2^31")
_FRAMES: _Rule = (lambda value: _whole(value) and 0 < value < 2**31, "a whole number of 1 or more, below 2^31")
# What follows is not implemented, and has no effect at these values: going on is a choice of two.
_OFF: _Rule = (lambda value: _number(value) and value == 1, "1, which is off: this build does not implement it")
_NO_CHOICE: _Rule = (
    lambda value: _whole(value) and value != 1 and value >= 0,
    "0 or a whole number of 2 or more, which is off: this build does not implement it",
)

_RULES: dict[str, _Rule] = {
    "languages": (_languages, "a list of names"),
    "max_new_frames": _FRAMES,
    "recommended.do_sample": _FLAG,
    "sampled.do_sample": _FLAG,
    "sampled.audio_temperature": _TEMPERATURE,
    "sampled.audio_top_p": _TOP_P,
    "sampled.audio_top_k": _TOP_K,
    "sampled.audio_repetition_penalty": _OFF,
    "sampled.text_temperature": _TEMPERATURE,
    "sampled.text_top_p": _OFF,
    "sampled.text_top_k": _NO_CHOICE,
}
_GROUPS = ("recommended", "sampled")


def read_generation_defaults(folder: Path) -> dict[str, Any]:
    """What the file of ``folder`` advises, by ``key`` or ``group.key``; empty without the file.

    Raises CheckpointError for a key that is not known, and a value of the wrong type or out of its limits.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    found: dict[str, Any] = {}
    for key, value in read_json(path).items():
        if key not in _GROUPS:
            found[key] = value
        elif isinstance(value, Mapping):
            found.update({f"{key}.{name}": each for name, each in value.items()})
        else:
            raise CheckpointError(f"{path}: {key} is {value!r}, expected an object")
    for key, value in found.items():
        if key not in _RULES:
            raise CheckpointError(f"{path}: {key} is not known; {hint(key, _RULES, 'known are')}")
        fits, expected = _RULES[key]
        if not fits(value):
            raise CheckpointError(f"{path}: {key} is {value!r}, expected {expected}")
    return found
