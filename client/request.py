"""One request for speech, and how it becomes the input tensors of the Triton model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.utils import np_to_triton_dtype

from client.errors import InvalidArgument

FORMATS = ("f32", "s16")
INTEGERS: dict[str, type[np.signedinteger]] = {
    "seed": np.int64,
    "top_k": np.int32,
    "max_frames": np.int32,
    "first_chunk_frames": np.int32,
    "chunk_frames": np.int32,
    "reference_sample_rate": np.int32,
}
FLOATS = ("temperature", "top_p")
STRINGS = ("voice", "reference_text")


@dataclass
class SpeechRequest:
    """A text and how to say it. A field that is None is not sent, and the server uses its own default.

    text                   str, or bytes that are sent as they are
    seed                   0 … 2⁶³−1; None lets the server pick one
    temperature            0 is greedy
    top_p                  0 < top_p ≤ 1
    top_k                  0 is off
    max_frames             the most frames to say
    format                 ``f32`` or ``s16``: what the server sends (``b64`` is for generate_stream over HTTP)
    first_chunk_frames     frames in the first chunk
    chunk_frames           frames in the later chunks
    voice                  name of a voice that the server has
    reference_audio        somebody's voice instead: a path or the bytes of a wav, flac, mp3 or ogg file, or samples,
                           an array [n] or [n, channels] of floats (full scale 1) or 16-bit integers
    reference_sample_rate  samples a second of an array; a file says it itself
    reference_text         what the clip says. The speech then goes on from it; without it the clip is a reference
    extra                  more inputs by name: an array is sent as it is; str and bytes become BYTES, bool BOOL,
                           int INT64, float FP32, each of shape [1]. A name from above replaces that field, so that
                           a test can send a wrong type; None leaves the field out

    Limits are the server's to know, so values go out unchecked. Only what cannot be put into a tensor at all (a wrong
    type, a number too large for it) is refused here, with the same ``InvalidArgument`` that the server's answer gives.
    """

    text: str | bytes
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_frames: int | None = None
    format: str = "f32"
    first_chunk_frames: int | None = None
    chunk_frames: int | None = None
    voice: str | None = None
    reference_audio: np.ndarray | bytes | str | os.PathLike[str] | None = field(default=None, compare=False)
    reference_sample_rate: int | None = None
    reference_text: str | bytes | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self) -> list[InferInput]:
        """The input tensors, of shape [1] except for samples. Reads the file that ``reference_audio`` names.

        Raises InvalidArgument for a value that fits no tensor, and for a file that cannot be read.
        """
        if self.format not in FORMATS:
            raise InvalidArgument(f"{self.format!r} is unknown to this client; use f32 or s16", field="format")
        tensors = [_bytes_input("text", _encode(self.text)), _bytes_input("format", self.format.encode())]
        for name, dtype in INTEGERS.items():
            value = getattr(self, name)
            if value is not None:
                tensors.append(_input(name, _integer(name, value, dtype)))
        for name in FLOATS:
            value = getattr(self, name)
            if value is not None:
                tensors.append(_input(name, _float(name, value)))
        for name in STRINGS:
            value = getattr(self, name)
            if value is not None:
                tensors.append(_bytes_input(name, _encode(value, name)))
        if self.reference_audio is not None:
            tensors.extend(_clip(self.reference_audio))
        tensors = [tensor for tensor in tensors if tensor.name() not in self.extra]
        tensors.extend(_extra_input(name, value) for name, value in self.extra.items() if value is not None)
        return tensors


def make_request(text: str | bytes | SpeechRequest, params: Mapping[str, Any]) -> SpeechRequest:
    """A request from a text and keyword parameters, or a request with some of its fields replaced."""
    known = {f.name for f in dataclasses.fields(SpeechRequest)} - {"text"}
    for name in params:
        if name not in known:
            raise InvalidArgument(f"is not a field of a request; use one of {', '.join(sorted(known))}", field=name)
    if isinstance(text, SpeechRequest):
        return dataclasses.replace(text, **params)
    return SpeechRequest(text, **params)


def _clip(audio: object) -> list[InferInput]:
    """``reference_audio`` and ``reference_channels``, or ``reference_file``."""
    if isinstance(audio, (bytes, bytearray)):
        return [_bytes_input("reference_file", bytes(audio))]
    if isinstance(audio, (str, os.PathLike)):
        try:
            return [_bytes_input("reference_file", Path(audio).read_bytes())]
        except OSError as error:
            raise InvalidArgument(
                f"the file {os.fspath(audio)} cannot be read: {error.strerror}", field="reference_audio"
            ) from None
    if not isinstance(audio, np.ndarray):
        raise InvalidArgument(
            f"a {type(audio).__name__} is no clip; give an array, a path or a file's bytes",
            field="reference_audio",
        )
    if audio.ndim not in (1, 2):
        raise InvalidArgument(
            f"an array of shape {list(audio.shape)} is no clip; give [n] or [n, channels]", field="reference_audio"
        )
    if audio.dtype == np.int16:
        samples = audio.astype(np.float32) / 32768
    elif np.issubdtype(audio.dtype, np.floating):
        samples = audio.astype(np.float32)
    else:
        raise InvalidArgument(
            f"an array of {audio.dtype} is no clip; give floats (full scale 1) or int16", field="reference_audio"
        )
    channels = audio.shape[1] if audio.ndim == 2 else 1
    return [
        _input("reference_audio", np.ascontiguousarray(samples).reshape(-1)),
        _input("reference_channels", np.array([channels], dtype=np.int32)),
    ]


def _encode(text: object, name: str = "text") -> bytes:
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


def _integer(name: str, value: object, dtype: type[np.signedinteger]) -> np.ndarray:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise InvalidArgument(f"{value!r} is a {type(value).__name__}; give an integer", field=name)
    limits = np.iinfo(dtype)
    if value > limits.max:
        raise InvalidArgument(f"{value} is above {limits.max}, the largest value that can be sent", field=name)
    if value < limits.min:
        raise InvalidArgument(f"{value} is below {limits.min}, the smallest value that can be sent", field=name)
    return np.array([value], dtype=dtype)


def _float(name: str, value: object) -> np.ndarray:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidArgument(f"{value!r} is a {type(value).__name__}; give a number", field=name)
    try:
        with np.errstate(over="ignore"):
            return np.array([value], dtype=np.float32)  # beyond FP32 this is inf, which the server refuses by name
    except OverflowError:
        raise InvalidArgument(f"{value} is too large for a 32-bit float", field=name) from None


def _extra_input(name: str, value: object) -> InferInput:
    if isinstance(value, np.ndarray):
        return _input(name, value)
    if isinstance(value, (str, bytes)):
        return _bytes_input(name, _encode(value))
    if isinstance(value, bool):
        return _input(name, np.array([value], dtype=np.bool_))
    if isinstance(value, int):
        return _input(name, _integer(name, value, np.int64))
    if isinstance(value, float):
        return _input(name, _float(name, value))
    raise InvalidArgument(
        f"a {type(value).__name__} cannot be sent; give an array, str, bytes, bool, int or float", field=name
    )


def _bytes_input(name: str, value: bytes) -> InferInput:
    return _input(name, np.array([value], dtype=np.object_))


def _input(name: str, array: np.ndarray) -> InferInput:
    datatype = np_to_triton_dtype(array.dtype)
    if datatype is None:
        raise InvalidArgument(f"arrays of dtype {array.dtype} cannot be sent to Triton", field=name)
    tensor = InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor
