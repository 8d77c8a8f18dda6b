"""The test request of each pipeline: the shortest thing that passes every stage."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

#: What can be asked, in the order in which it is.
CANARY_MODELS = ("tts", "asr")
_SILENCE, _RATE = 1600, 16_000


def canary_tensors(model: str, known: Collection[str]) -> list[Any]:
    """Inputs of a test request to ``model``, of the inputs ``known`` to it: one frame of speech, or one token for
    0.1 s of silence.
    """
    import numpy  # not needed for anything but the canary

    if model == "tts":
        wanted: dict[str, tuple[Any, str]] = {
            "text": (numpy.array([b"Hi."], dtype=numpy.object_), "BYTES"),
            "max_frames": (numpy.array([1], dtype=numpy.int32), "INT32"),
        }
    else:
        wanted = {
            "audio": (numpy.zeros(_SILENCE, dtype=numpy.float32), "FP32"),
            "sample_rate": (numpy.array([_RATE], dtype=numpy.int32), "INT32"),
            "max_tokens": (numpy.array([1], dtype=numpy.int32), "INT32"),
        }
    import tritonclient.grpc as grpc

    tensors = []
    for name, (value, kind) in wanted.items():
        if name in known or name == "text":
            tensors.append(grpc.InferInput(name, list(value.shape), kind))
            tensors[-1].set_data_from_numpy(value)
    return tensors
