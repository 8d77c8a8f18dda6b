"""Is a running server well, and busy? Health routes, a request that really speaks, and the counters of both."""

from __future__ import annotations

import http.client
import json
import queue
from collections.abc import Mapping
from typing import Any

from backends.launch.canary import canary_tensors


class Health:
    """Questions to the server at ``host``.

    ``ports``: those of the services ``http``, ``grpc`` and ``metrics``.
    ``canaries``: the models that test requests go to, with the names of their inputs.
    """

    def __init__(self, host: str, ports: Mapping[str, int], canaries: Mapping[str, tuple[str, ...]]) -> None:
        wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        self._host = wildcard.get(host, host)
        self._ports = ports
        self._canaries = canaries

    @property
    def has_canary(self) -> bool:
        return bool(self._canaries)

    @property
    def canary_names(self) -> str:
        """The models that test requests go to, for people."""
        return " and ".join(self._canaries)

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
        # A transcription is inside from its audio to its last text.
        return voices + max(decoding, gauge("voxstage_vocoder_streams"), gauge("voxstage_asr_inside"))

    def canary(self, timeout: float) -> str | None:
        """Send a short request through every stage of each pipeline. None if all were answered, else what went wrong.

        UNAVAILABLE is an answer: the server is full, and well.
        """
        for model in self._canaries:
            try:
                problem = self._ask(model, timeout)
            except Exception as error:  # any failure of the transport is the finding itself
                problem = _words(error)
            if problem is not None:
                return problem if len(self._canaries) == 1 else f"{model}: {problem}"
        return None

    def _ask(self, model: str, timeout: float) -> str | None:
        import tritonclient.grpc as grpc  # not needed for anything but the canary

        inputs = canary_tensors(model, self._canaries[model])
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        host = f"[{self._host}]" if ":" in self._host else self._host
        client = grpc.InferenceServerClient(f"{host}:{self._ports['grpc']}")
        ended = False
        try:
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer(model, inputs, enable_empty_final_response=True)
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
