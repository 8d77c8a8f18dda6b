"""Streams of codes sent to ``tts_vocoder`` itself, as ``tts_decoder`` would send them."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

_TYPES = {"i4": "INT32", "i8": "INT64", "b1": "BOOL", "O": "BYTES"}


class CodeStream:
    """One stream of the vocoder over one gRPC stream: a request a chunk, sent without waiting for answers."""

    def __init__(self, url: str, stream_id: int) -> None:
        self._answers: queue.Queue[Any] = queue.Queue()
        self._client, self._id, self._sent = grpc.InferenceServerClient(url), stream_id, 0
        self._client.start_stream(lambda result, error: self._answers.put(error or result))

    def __enter__(self) -> CodeStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.stop_stream()
        self._client.close()

    def send(self, codes: np.ndarray[Any, Any], final: bool) -> None:
        """The next chunk: integers [T, codebooks]."""
        values: dict[str, np.ndarray[Any, Any]] = {
            "codes": codes.astype(np.int32),
            "stream_id": np.array([self._id], np.int64),
            "chunk_index": np.array([self._sent], np.int32),
            "final": np.array([final]),
            **{name: np.array([b""], np.object_) for name in ("error", "timeline")},
            "finish_reason": np.array([b"stop" if final else b""], np.object_),
            "format": np.array([b"f32"], np.object_),
        }
        tensors = []
        for name, value in values.items():
            kind = "O" if value.dtype == np.object_ else value.dtype.str[1:]
            tensors.append(grpc.InferInput(name, list(value.shape), _TYPES[kind]))
            tensors[-1].set_data_from_numpy(value)
        self._client.async_stream_infer("tts_vocoder", tensors)
        self._sent += 1

    def receive(self, timeout: float = 30.0) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs of the next answer by name; raises what the server answered instead."""
        answer = self._answers.get(timeout=timeout)
        if isinstance(answer, Exception):
            raise answer
        return {output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs}

    def speak(self, chunks: Sequence[np.ndarray[Any, Any]]) -> list[dict[str, np.ndarray[Any, Any]]]:
        """All chunks of a stream, then all answers, until one is final."""
        for i, chunk in enumerate(chunks):
            self.send(chunk, i + 1 == len(chunks))
        answers = [self.receive()]
        while not answers[-1]["final"][0]:
            answers.append(self.receive())
        return answers
