"""Values of a request as input tensors of Triton. What fits no tensor is refused by the name of its field."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.utils import np_to_triton_dtype

from client.errors import InvalidArgument

#: Audio of a request: a path, the bytes of a file, or samples.
Audio = np.ndarray | bytes | str | os.PathLike[str]


def clip_inputs(audio: object, field: str, file: str, samples: str, channels: str) -> list[InferInput]:
    """The input ``file`` for a path or the bytes of a file; ``samples`` FP32 [n × channels] and ``channels`` for an
    array. ``field`` names the argument in errors. Raises InvalidArgument for what is no clip, or cannot be read."""
    if isinstance(audio, (bytes, bytearray)):
        return [bytes_input(file, bytes(audio))]
    if isinstance(audio, (str, os.PathLike)):
        return [bytes_input(file, read_clip(Path(audio), field))]
    if not isinstance(audio, np.ndarray):
        raise InvalidArgument(
            f"a {type(audio).__name__} is no clip; give an array, a path or a file's bytes", field=field
        )
    if audio.ndim not in (1, 2):
        raise InvalidArgument(
            f"shape {list(audio.shape)} is not that of a clip; give [n] or [n, channels]", field=field
        )
    if audio.dtype == np.int16:
        values = audio.astype(np.float32) / 32768
    elif np.issubdtype(audio.dtype, np.floating):
        values = audio.astype(np.float32)
    else:
        raise InvalidArgument(
            f"dtype {audio.dtype} is not that of a clip; give floats (full scale 1) or int16", field=field
        )
    count = audio.shape[1] if audio.ndim == 2 else 1
    return [
        array_input(samples, np.ascontiguousarray(values).reshape(-1)),
        array_input(channels, np.array([count], dtype=np.int32)),
    ]


def read_clip(path: Path, field: str) -> bytes:
    """The bytes of a file. Raises InvalidArgument naming ``field`` when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"the file {path} cannot be read: {error.strerror or error}", field=field) from None


def replaced(tensors: list[InferInput], extra: Mapping[str, Any]) -> list[InferInput]:
    """``tensors`` with the inputs of ``extra`` in place of those of the same name; None there leaves an input out."""
    kept = [tensor for tensor in tensors if tensor.name() not in extra]
    return kept + [any_input(name, value) for name, value in extra.items() if value is not None]


def encode(text: object, name: str = "text") -> bytes:
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise InvalidArgument(f"{text!r} is a {type(text).__name__}; give a str or bytes", field=name)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        broken = text[error.start]
        raise InvalidArgument(
            f"character {error.start} is {broken!r}, half a surrogate pair, which UTF-8 cannot hold", field=name
        ) from None


def integer(name: str, value: object, dtype: type[np.signedinteger]) -> np.ndarray:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise InvalidArgument(f"{value!r} is a {type(value).__name__}; give an integer", field=name)
    limits = np.iinfo(dtype)
    if value > limits.max:
        raise InvalidArgument(f"{value} is above {limits.max}, the largest value that can be sent", field=name)
    if value < limits.min:
        raise InvalidArgument(f"{value} is below {limits.min}, the smallest value that can be sent", field=name)
    return np.array([value], dtype=dtype)


def floating(name: str, value: object) -> np.ndarray:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidArgument(f"{value!r} is a {type(value).__name__}; give a number", field=name)
    try:
        with np.errstate(over="ignore"):
            return np.array([value], dtype=np.float32)  # beyond FP32 this is inf, which the server refuses by name
    except OverflowError:
        raise InvalidArgument(f"{value} is too large for a 32-bit float", field=name) from None


def any_input(name: str, value: object) -> InferInput:
    if isinstance(value, np.ndarray):
        return array_input(name, value)
    if isinstance(value, (str, bytes)):
        return bytes_input(name, encode(value))
    if isinstance(value, bool):
        return array_input(name, np.array([value], dtype=np.bool_))
    if isinstance(value, int):
        return array_input(name, integer(name, value, np.int64))
    if isinstance(value, float):
        return array_input(name, floating(name, value))
    raise InvalidArgument(
        f"a {type(value).__name__} cannot be sent; give an array, str, bytes, bool, int or float", field=name
    )


def bytes_input(name: str, value: bytes) -> InferInput:
    return array_input(name, np.array([value], dtype=np.object_))


def array_input(name: str, array: np.ndarray) -> InferInput:
    datatype = np_to_triton_dtype(array.dtype)
    if datatype is None:
        raise InvalidArgument(f"arrays of dtype {array.dtype} cannot be sent to Triton", field=name)
    tensor = InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor
