"""What a request of ``asr`` asks for beside its audio."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from backends.asr.family import Family
from backends.errors import InvalidArgument
from backends.fields import SEED, TEMPERATURE, Number, read_string

WISHES = ("language", "context", "max_tokens", "temperature", "seed")


@dataclass(frozen=True, slots=True)
class Wishes:
    """Every field with a value. ``max_tokens`` of 0: as many as the model has room for."""

    language: str
    context: str
    max_tokens: int
    temperature: float
    seed: int


def read_wishes(tensors: Mapping[str, NDArray[Any] | None], family: Family, max_context_bytes: int) -> Wishes:
    """The request behind the input tensors. Raises InvalidArgument naming field, value and limit."""
    language = (read_string("language", tensors["language"]) or "").strip()
    context = read_string("context", tensors["context"]) or ""
    size = len(context.encode())
    if size > max_context_bytes:
        raise InvalidArgument("context", f"is {size} bytes long, the limit is {max_context_bytes} bytes")
    family.check(language, context)
    temperature, seed = float(TEMPERATURE.read(tensors["temperature"]) or 0.0), SEED.read(tensors["seed"])
    if seed is None:
        seed = secrets.randbits(63) if temperature else 0  # greedy: nothing is drawn with it
    return Wishes(
        language=language,
        context=context,
        max_tokens=int(Number("max_tokens", 1, family.max_tokens).read(tensors["max_tokens"]) or 0),
        temperature=temperature,
        seed=int(seed),
    )
