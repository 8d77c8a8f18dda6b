"""One request, for speech or for a transcript, and how it becomes the input tensors of the Triton model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from tritonclient.grpc import InferInput

from client.errors import InvalidArgument
from client.tensors import Audio, array_input, bytes_input, clip_inputs, encode, floating, integer, replaced

R = TypeVar("R", bound="SpeechRequest | TranscriptionRequest")

FORMATS = ("f32", "s16")
INTEGERS: dict[str, type[np.signedinteger]] = {
    "seed": np.int64,
    "top_k": np.int32,
    "max_frames": np.int32,
    "first_chunk_frames": np.int32,
    "chunk_frames": np.int32,
    "reference_sample_rate": np.int32,
    "sample_rate": np.int32,
    "max_tokens": np.int32,
}
FLOATS = ("temperature", "top_p")
STRINGS = ("voice", "reference_text", "language", "context")


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
    reference_audio: Audio | None = field(default=None, compare=False)
    reference_sample_rate: int | None = None
    reference_text: str | bytes | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self) -> list[InferInput]:
        """The input tensors, of shape [1] except for samples. Reads the file that ``reference_audio`` names.

        Raises InvalidArgument for a value that fits no tensor, and for a file that cannot be read.
        """
        if self.format not in FORMATS:
            raise InvalidArgument(f"{self.format!r} is unknown to this client; use f32 or s16", field="format")
        tensors = [bytes_input("text", encode(self.text)), bytes_input("format", self.format.encode())]
        tensors += _fields(self)
        if self.reference_audio is not None:
            names = ("reference_file", "reference_audio", "reference_channels")
            tensors += clip_inputs(self.reference_audio, "reference_audio", *names)
        return replaced(tensors, self.extra)


@dataclass
class TranscriptionRequest:
    """A recording and what to know about it. A field that is None is not sent, and the server uses its own default.

    audio        a path or the bytes of a wav, flac, mp3 or ogg file, or samples: an array [n] or [n, channels] of
                 floats (full scale 1) or 16-bit integers
    sample_rate  samples a second of an array; a file says it itself
    language     what is spoken, by the name or code that the model knows; None lets it find out
    context      words that may be spoken, names above all
    max_tokens   the most tokens of each window of the recording
    temperature  0 is greedy
    seed         0 … 2⁶³−1
    extra        more inputs by name, as in SpeechRequest

    Values go out unchecked, as in SpeechRequest. Only an array without ``sample_rate`` is refused here.
    """

    audio: Audio = field(compare=False)
    sample_rate: int | None = None
    language: str | None = None
    context: str | bytes | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self) -> list[InferInput]:
        """The input tensors, of shape [1] except for samples. Reads the file that ``audio`` names.

        Raises InvalidArgument for a value that fits no tensor, and for a file that cannot be read.
        """
        names = ("audio_file", "audio", "channels")
        if isinstance(self.audio, np.ndarray) and self.sample_rate is None and "sample_rate" not in self.extra:
            raise InvalidArgument("is missing; an array needs its samples a second", field="sample_rate")
        return replaced(clip_inputs(self.audio, "audio", *names) + _fields(self), self.extra)


def make_request(text: str | bytes | SpeechRequest, params: Mapping[str, Any]) -> SpeechRequest:
    """A request from a text and keyword parameters, or a request with some of its fields replaced."""
    return _make(SpeechRequest, "text", text, params)


def make_transcription(audio: Audio | TranscriptionRequest, params: Mapping[str, Any]) -> TranscriptionRequest:
    """A request from a recording and keyword parameters, or a request with some of its fields replaced."""
    return _make(TranscriptionRequest, "audio", audio, params)


def _make(kind: type[R], first: str, given: Any, params: Mapping[str, Any]) -> R:
    known = {f.name for f in dataclasses.fields(kind)} - {first}
    for name in params:
        if name not in known:
            raise InvalidArgument(f"is not a field of a request; use one of {', '.join(sorted(known))}", field=name)
    return dataclasses.replace(given, **params) if isinstance(given, kind) else kind(given, **params)


def _fields(request: SpeechRequest | TranscriptionRequest) -> list[InferInput]:
    """The fields that both requests send in one way, those that are set."""
    tensors = []
    for name, value in ((f.name, getattr(request, f.name)) for f in dataclasses.fields(request)):
        if value is None:
            continue
        if name in INTEGERS:
            tensors.append(array_input(name, integer(name, value, INTEGERS[name])))
        elif name in FLOATS:
            tensors.append(array_input(name, floating(name, value)))
        elif name in STRINGS:
            tensors.append(bytes_input(name, encode(value, name)))
    return tensors
