"""Requests to one stage itself, past the ensemble."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

from backends.models.moss_tts_local_prompt import PromptBuilder
from tests.server.dummies import ROOT

_NAMES = (("i4", "INT32"), ("i8", "INT64"), ("f4", "FP32"), ("f8", "FP64"), ("O", "BYTES"))
_TYPES = {np.dtype(name): triton for name, triton in _NAMES}


def prompt_rows(text: str, checkpoint: Path = ROOT / "checkpoints" / "voice") -> np.ndarray:
    """Prompt rows int32 [P, 13]."""
    return PromptBuilder(checkpoint / "tts").build(text)


class DirectStream:
    """One decoupled request to one model. A context manager: leaving it cancels what still runs.

    What has ended is not cancelled: a cancel that crosses the last response leaves the request counted inside Triton
    now and then (2.51), and the server ends seconds later. It is the gRPC frontend's, not a stage's.
    """

    def __init__(self, url: str, model: str, **inputs: np.ndarray) -> None:
        self._answers: queue.Queue[Any] = queue.Queue()
        self._ended = False
        self._client = grpc.InferenceServerClient(url)
        tensors = []
        for name, array in inputs.items():
            tensors.append(grpc.InferInput(name, list(array.shape), _TYPES[array.dtype]))
            tensors[-1].set_data_from_numpy(array)
        self._client.start_stream(lambda result, error: self._answers.put(error or result))
        self._client.async_stream_infer(model, tensors, enable_empty_final_response=True)

    def __enter__(self) -> DirectStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def next(self, timeout: float = 20.0) -> dict[str, np.ndarray] | None:
        """The outputs of the next response by name; None at the end. Raises what the server answered instead."""
        answer = self._answers.get(timeout=timeout)
        if isinstance(answer, Exception):
            self._ended = True
            raise answer
        response = answer.get_response()
        last = bool(response.parameters["triton_final_response"].bool_param)
        self._ended = self._ended or last
        if last and not response.outputs:
            return None
        outputs = {output.name: answer.as_numpy(output.name) for output in response.outputs}
        if last:
            self._answers = queue.Queue()  # nothing follows the last response; the end is this one's
            self._answers.put(_End())
        return outputs

    def rest(self) -> list[dict[str, np.ndarray]]:
        """All responses until the end."""
        found = []
        while (outputs := self.next()) is not None:
            found.append(outputs)
        return found

    def cancel(self) -> None:
        """Cancel the request unless it has ended, and close the connection."""
        self._client.stop_stream(cancel_requests=not self._ended)
        self._client.close()


class _End:
    """Looks like the empty last response."""

    def get_response(self) -> Any:
        from tritonclient.grpc import service_pb2

        response = service_pb2.ModelInferResponse()
        response.parameters["triton_final_response"].bool_param = True
        return response
