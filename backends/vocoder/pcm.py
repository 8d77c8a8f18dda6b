"""Sample formats: float32 to 16-bit and to base64."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import Internal, InvalidArgument

FORMATS = ("f32", "s16", "b64")
_FULL_SCALE = 32767.0


def to_s16(pcm: NDArray[np.float32]) -> NDArray[np.int16]:
    """Float32 [n], full scale 1.0 -> int16 [n]: times 32767, rounded to the nearest (halves to even), clipped at full
    scale.

    Internal when a sample is not a number: silence or noise instead would hide a fault.
    """
    if np.isnan(pcm).any():
        raise Internal("audio: a sample is not a number")
    scaled: NDArray[np.float32] = np.rint(np.clip(pcm, -1.0, 1.0) * np.float32(_FULL_SCALE))
    return scaled.astype(np.int16)


def to_base64(pcm: NDArray[np.float32]) -> bytes:
    """Float32 [n] -> ASCII base64 of its little-endian 16-bit samples."""
    return base64.b64encode(to_s16(pcm).astype("<i2").tobytes())


def to_format(pcm: NDArray[np.float32], name: str) -> NDArray[Any]:
    """The ``audio`` tensor of a chunk: ``f32`` float32 [n] unclipped, ``s16`` int16 [n], ``b64`` bytes objects [1].

    InvalidArgument for another name. Internal when a sample is not a finite number, in every format.
    """
    if not np.isfinite(pcm).all():
        raise Internal("audio: a sample is not a finite number")
    if name == "f32":
        return np.ascontiguousarray(pcm, dtype=np.float32)
    if name == "s16":
        return to_s16(pcm)
    if name == "b64":
        return np.array([to_base64(pcm)], dtype=np.object_)
    raise InvalidArgument("format", f"{name!r} is not one of {', '.join(FORMATS)}")
