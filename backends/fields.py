"""The fields of a request: names, types, limits, and the sentences that refuse a bad one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgument

FORMATS = ("f32", "s16", "b64")


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar field with inclusive limits. ``whole``: an integer."""

    name: str
    low: float
    high: float
    whole: bool = True
    low_open: bool = False

    def read(self, tensor: NDArray[Any] | None) -> int | float | None:
        """The value of a tensor of one element; None when the field is absent. Raises InvalidArgument."""
        if tensor is None:
            return None
        if tensor.size != 1 or tensor.ndim > 1:
            raise InvalidArgument(self.name, f"has shape {list(tensor.shape)}, expected [1]")
        value = tensor.reshape(-1)[0].item()
        self.check(value)
        return value

    def check(self, value: int | float) -> None:
        """Raise InvalidArgument when ``value`` is out of limits."""
        if not self.whole and not math.isfinite(value):
            raise InvalidArgument(self.name, f"{value} is not a finite number")
        if value < self.low or (self.low_open and value == self.low):
            bound = (
                f"is too small; it must be above {_text(self.low)}"
                if self.low_open
                else f"is below {_text(self.low)}, the smallest value"
            )
            raise InvalidArgument(self.name, f"{_text(value)} {bound}")
        if value > self.high:
            raise InvalidArgument(self.name, f"{_text(value)} is above {_text(self.high)}, the largest value")


def _text(value: int | float) -> str:
    return f"{value:g}" if isinstance(value, float) and not value.is_integer() else str(int(value))


def read_bytes(name: str, tensor: NDArray[Any] | None) -> bytes:
    """A field of one string of bytes; empty when absent. Raises InvalidArgument for another shape."""
    if tensor is None:
        return b""
    if tensor.size != 1 or tensor.ndim > 1:
        raise InvalidArgument(name, f"has shape {list(tensor.shape)}, expected [1]: one string a request")
    raw = tensor.reshape(-1)[0]
    return raw.encode("utf-8") if isinstance(raw, str) else bytes(raw)


def read_string(name: str, tensor: NDArray[Any] | None) -> str | None:
    """A field of one UTF-8 string; None when absent. Raises InvalidArgument for another shape or broken UTF-8."""
    if tensor is None:
        return None
    raw = read_bytes(name, tensor)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            name, f"is not valid UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}"
        ) from None


def read_format(tensor: NDArray[Any] | None) -> str:
    """The audio format; ``f32`` when absent."""
    value = read_string("format", tensor)
    if value is None:
        return FORMATS[0]
    if value not in FORMATS:
        raise InvalidArgument("format", f"{value!r} is not one of {', '.join(FORMATS)}")
    return value


SEED = Number("seed", 0, 2**63 - 1)
TEMPERATURE = Number("temperature", 0.0, 10.0, whole=False)
TOP_P = Number("top_p", 0.0, 1.0, whole=False, low_open=True)
TOP_K = Number("top_k", 0, 2**31 - 1)


def frames_field(name: str, limit: int) -> Number:
    """``max_frames``, ``first_chunk_frames`` or ``chunk_frames``: at least one frame, at most the stage's limit."""
    return Number(name, 1, limit)


def scalar(value: int | float | bool | str, dtype: Any) -> NDArray[Any]:
    """A tensor of shape [1]; strings become bytes objects."""
    if isinstance(value, str):
        return np.array([value.encode("utf-8")], dtype=np.object_)
    return np.array([value], dtype=dtype)
