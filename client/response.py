"""Reading one response of a Triton model: its outputs become a chunk."""

from __future__ import annotations

import json
import math

import numpy as np
from tritonclient.grpc import InferResult

from client.chunk import AudioChunk
from client.errors import ServerError
from client.transcript import Segment, TranscriptChunk


def read_chunk(result: InferResult, received_at: float) -> tuple[AudioChunk, str]:
    """The chunk in a response, and the text of its ``error`` output. Raises ServerError when an output is missing."""
    chunk = AudioChunk(
        audio=_output(result, "audio").reshape(-1),
        sample_rate=int(_output(result, "sample_rate").reshape(-1)[0]),
        index=int(_output(result, "chunk_index").reshape(-1)[0]),
        final=bool(_output(result, "final").reshape(-1)[0]),
        finish_reason=_text(result, "finish_reason"),
        received_at=received_at,
        timeline=read_timeline(result.as_numpy("timeline")),
        channels=_channels(result),
    )
    if chunk.audio.dtype not in (np.float32, np.int16):
        raise ServerError(f"The server sent audio of dtype {chunk.audio.dtype}; this client reads float32 and int16")
    return chunk, _text(result, "error")


def read_transcript(result: InferResult, received_at: float) -> tuple[TranscriptChunk, str]:
    """The chunk in a response, and the text of its ``error`` output. Raises ServerError when an output is missing, or
    ``segments`` is not what it should be."""
    chunk = TranscriptChunk(
        text=_text(result, "text"),
        segments=read_segments(_text(result, "segments")),
        language=_text(result, "detected_language"),
        index=int(_output(result, "chunk_index").reshape(-1)[0]),
        final=bool(_output(result, "final").reshape(-1)[0]),
        finish_reason=_text(result, "finish_reason"),
        received_at=received_at,
        timeline=read_timeline(result.as_numpy("timeline")),
    )
    return chunk, _text(result, "error")


def read_segments(text: str) -> tuple[Segment, ...]:
    """Segments from JSON, a list of objects with ``start`` and ``end`` in seconds and ``text``; "" is none. Raises
    ServerError for anything else, and for times that are not finite."""
    try:
        found = json.loads(text) if text else []
        segments = tuple(
            Segment(float(one["start"]), float(one["end"]), str(one["text"]), one.get("speaker")) for one in found
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"The server sent segments that this client cannot read: {text[:80]!r} ({error!r})") from None
    for segment in segments:
        if not (math.isfinite(segment.start) and math.isfinite(segment.end)):
            raise ServerError(f"The server sent a segment from {segment.start} to {segment.end} s")
    return segments


def read_timeline(tensor: np.ndarray | None) -> dict[str, float] | None:
    """The numbers in a ``timeline`` output, a JSON object in BYTES. None when it is missing or empty, or no object:
    what is only a help for measuring must not break a stream."""
    if tensor is None or tensor.size == 0:
        return None
    try:
        found = json.loads(tensor.reshape(-1)[0])
    except (TypeError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    numbers = {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    return numbers or None


def _channels(result: InferResult) -> int:
    """1 where the response does not say."""
    array = result.as_numpy("channels")
    channels = 1 if array is None else int(array.reshape(-1)[0])
    if channels < 1:
        raise ServerError(f"The server sent audio of {channels} channels")
    return channels


def _output(result: InferResult, name: str) -> np.ndarray:
    array = result.as_numpy(name)
    if array is None:
        raise ServerError(f"The response has no output {name!r}. Is the model really a Voxstage ensemble?")
    return array


def _text(result: InferResult, name: str) -> str:
    value = _output(result, name).reshape(-1)[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
