"""Is a running server well, and busy? Health routes, a request that really speaks, and the counters of both."""

from __future__ import annotations

import http.client
import json
import queue
from collections.abc import Mapping
from typing import Any

#: The model whose request is the canary, and the request: the shortest thing that passes every stage.
CANARY_MODEL = "tts"
_CANARY_TEXT = b"Hi."
_CANARY_FRAMES = 1


class Health:
    """Questions to the server at ``host``.

    ``ports``: those of the services ``http``, ``grpc`` and ``metrics``.
    ``canary_inputs``: the input names of the canary's model; None where that model is not served.
    """

    def __init__(self, host: str, ports: Mapping[str, int], canary_inputs: tuple[str, ...] | None) -> None:
        wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        self._host = wildcard.get(host, host)
        self._ports = ports
        self._canary_inputs = canary_inputs

    @property
    def has_canary(self) -> bool:
        return self._canary_inputs is not None

    def ready(self, model: str) -> bool:
        """True if the server answers and says that ``model`` is ready."""
        return self._get(f"/v2/models/{model}/ready") is not None

    def executions(self) -> dict[str, int]:
        """Model → how many requests it has executed so far; empty if the server does not answer."""
        body = self._get("/v2/models/stats")
        if body is None:
            return {}
        return {
            entry["name"]: int(entry.get("execution_count", 0)) for entry in json.loads(body).get("model_stats", [])
        }

    def running(self) -> int | None:
        """Requests inside the stages by their own metrics (0.1 s old at most); None when the metrics route is silent.

        Triton has a count of its own, but a request that it lost (2.51) would stay in it for ever.
        """
        body = self._get("/metrics", "metrics")
        if body is None:
            return None
        lines = body.decode(errors="replace").splitlines()

        def gauge(name: str) -> int:
            return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(name))

        # A request waits for its voice; then it is in the decoder, in the vocoder, or in both. A clip may also come to
        # the encoder directly.
        decoding = gauge("voxstage_decoder_slots") + gauge("voxstage_decoder_waiting")
        voices = max(gauge("voxstage_voice_waiting"), gauge("voxstage_encoder_clips"))
        return voices + max(decoding, gauge("voxstage_vocoder_streams"))

    def canary(self, timeout: float) -> str | None:
        """Send one short request through every stage. None if it was answered, else what went wrong, in a few words.

        UNAVAILABLE is an answer: the server is full, and well.
        """
        if self._canary_inputs is None:
            return None
        try:
            return self._speak(timeout)
        except Exception as error:  # any failure of the transport is the finding itself
            return _words(error)

    def _speak(self, timeout: float) -> str | None:
        import numpy  # not needed for anything but the canary
        import tritonclient.grpc as grpc

        inputs = [grpc.InferInput("text", [1], "BYTES")]
        inputs[0].set_data_from_numpy(numpy.array([_CANARY_TEXT], dtype=numpy.object_))
        if "max_frames" in (self._canary_inputs or ()):
            inputs.append(grpc.InferInput("max_frames", [1], "INT32"))
            inputs[1].set_data_from_numpy(numpy.array([_CANARY_FRAMES], dtype=numpy.int32))
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        host = f"[{self._host}]" if ":" in self._host else self._host
        client = grpc.InferenceServerClient(f"{host}:{self._ports['grpc']}")
        ended = False
        try:
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer(CANARY_MODEL, inputs, enable_empty_final_response=True)
            while True:
                result, error = answers.get(timeout=timeout)
                if error is not None:
                    ended = True
                    return None if "UNAVAILABLE" in str(error) else _words(error)
                ended = bool(result.get_response().parameters["triton_final_response"].bool_param)
                problem = result.as_numpy("error") if result.get_output("error") is not None else None
                if problem is not None and problem.size and problem.flat[0]:
                    return bytes(problem.flat[0]).decode(errors="replace")
                if ended:
                    return None
        except queue.Empty:
            return f"no answer within {timeout:g} s"
        finally:
            # Never cancel what has ended: a cancel that crosses the last response can leave the request counted inside
            # Triton (seen on 2.51), which then takes seconds longer to stop.
            client.stop_stream(cancel_requests=not ended)
            client.close()

    def _get(self, path: str, service: str = "http") -> bytes | None:
        connection = http.client.HTTPConnection(self._host, self._ports[service], timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            return body if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def _words(error: Exception) -> str:
    message = getattr(error, "message", None)
    text = message() if callable(message) else str(error)
    return " ".join(str(text or repr(error)).split())
