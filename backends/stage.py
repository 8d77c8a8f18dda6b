"""The bridge to Triton: the only file that knows ``triton_python_backend_utils``.

A stage is a plain class (:class:`Stage`); :func:`triton_model` wraps it into the ``TritonPythonModel`` that Triton's
Python backend wants. Requests come in as :class:`StageRequest`, and every exception of a stage becomes a typed error
response: Triton would wrap a raised one into a message with file names and lose its code.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import triton_python_backend_utils as pb
from numpy.typing import NDArray

from backends.errors import Internal, VoxstageError, from_message
from backends.metrics import Counter, CounterFamily, Gauge, Histogram, Metrics
from backends.settings import load_settings, overrides

_FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_METRICS_PERIOD_SECONDS = 0.1


class StageRequest:
    """One request of a stage. Methods may be called from any thread.

    ``later``: the answer comes after ``execute``. ``status``: a failure has the gRPC or HTTP status of its code;
    streams have none.

    The lock is not for our own fields: Triton frees what ``is_cancelled`` reads when the last response is sent, and
    asking about a request that has ended kills the whole server (SIGSEGV in TRITONBACKEND_ResponseFactoryIsCancelled,
    seen on 2.51).
    """

    def __init__(self, raw: Any, later: bool, status: bool = False) -> None:
        self._raw, self._status = raw, status
        self._sender = raw.get_response_sender() if later else None
        self._inputs: dict[str, Any] | None = None
        self.response: Any = None
        self._done = False
        self._lock = threading.Lock()

    def tensor(self, name: str) -> NDArray[Any] | None:
        """An input as a NumPy array (strings: objects of bytes); None when it was left out."""
        if self._inputs is None:  # all at once: Triton's own look-up makes a list of all inputs for each name
            self._inputs = {tensor.name(): tensor for tensor in self._raw.inputs()}
        tensor = self._inputs.get(name)
        return None if tensor is None else tensor.as_numpy()

    def release(self) -> None:
        """Give the inputs back, for a decoupled request that will wait: they lie in memory that all requests share.

        Neither ``tensor`` nor ``parameters`` may be called any more, and arrays of ``tensor`` must have been copied.
        """
        if self._sender is not None:
            self._raw = self._inputs = None

    def parameters(self) -> dict[str, Any]:
        """Request parameters; ``generate_stream`` puts unknown JSON fields here."""
        return dict(json.loads(self._raw.parameters() or "{}"))

    def cancelled(self) -> bool:
        """Whether the client has gone; False once the request has ended. 31 us: not for a hot loop."""
        with self._lock:
            if self._done:
                return False
            return bool(self._raw.is_cancelled()) if self._sender is None else bool(self._sender.is_cancelled())

    def reply(self, outputs: Mapping[str, NDArray[Any]], final: bool = False) -> None:
        """Send one response; ``final`` ends the stream with it. A stage that is not decoupled replies once, and if it
        replies later, with ``final``."""
        tensors = [pb.Tensor(name, value) for name, value in outputs.items()]
        self._send(pb.InferenceResponse(output_tensors=tensors), final)

    def fail(self, error: VoxstageError) -> None:
        """End the request with an error. In an ensemble: before its first response only, else it leaks."""
        code = getattr(pb.TritonError, error.code, pb.TritonError.INTERNAL) if self._status else pb.TritonError.INTERNAL
        self._send(pb.InferenceResponse(output_tensors=[], error=pb.TritonError(str(error), code)), final=True)

    def finish(self) -> None:
        """End the stream without another response."""
        with self._lock:
            if self._sender is not None and not self._done:
                self._done = True
                self._sender.send(flags=_FINAL)

    def _send(self, response: Any, final: bool) -> None:
        with self._lock:
            if self._sender is None:
                self.response = response
            elif not self._done:
                self._sender.send(response, flags=_FINAL if final else 0)
                self._done = final  # not before: what could not be sent may still be followed by an error


class StageContext:
    """What the server offers to a stage."""

    def __init__(self, name: str, log: logging.Logger) -> None:
        self.name, self.log = name, log

    def call(self, model: str, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Run another model of this server to its end and drop what it answers. Raises Internal when it fails."""
        tensors = [pb.Tensor(name, value) for name, value in inputs.items()]
        request = pb.InferenceRequest(model_name=model, requested_output_names=[], inputs=tensors)
        for response in request.exec(decoupled=True):
            if response.has_error():
                raise Internal(f"{model} answered: {response.error().message()}")

    def infer(self, model: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The ``outputs`` of another model that answers once; blocks until then, on any thread.

        Raises what the model answered: a VoxstageError of the code that its message begins with, Internal otherwise.
        """
        tensors = [pb.Tensor(name, value) for name, value in inputs.items()]
        request = pb.InferenceRequest(model_name=model, requested_output_names=list(outputs), inputs=tensors)
        response = request.exec()
        if response.has_error():
            raise from_message(response.error().message(), model)
        found = {tensor.name(): tensor for tensor in response.output_tensors()}
        # Copies: the arrays look into memory that the response owns.
        return {name: np.array(found[name].as_numpy()) for name in outputs}


class Stage(Protocol):
    """A stage without Triton in it.

    A class may also say ``one_instance = False`` (it keeps no state between requests), and ``replies_later = True``: it
    is not decoupled, yet ``execute`` returns at once and each request gets its one reply from another thread.
    """

    Settings: ClassVar[type]
    metrics: Metrics

    def execute(self, request: StageRequest) -> None:
        """Take one request. Decoupled stages return at once and reply later."""
        ...

    def close(self) -> None:
        """Free everything; no request follows."""
        ...


class _TritonLog(logging.Handler):
    """Python's logging into Triton's log."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            pb.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb.Logger.log_warn(text)
        else:
            pb.Logger.log_info(text)


class _MetricsMirror:
    """Copies a stage's metrics into Triton's, a few times a second."""

    def __init__(self, metrics: Metrics, labels: dict[str, str]) -> None:
        kinds = {
            Counter: pb.MetricFamily.COUNTER,
            CounterFamily: pb.MetricFamily.COUNTER,
            Gauge: pb.MetricFamily.GAUGE,
            Histogram: pb.MetricFamily.HISTOGRAM,
        }
        self._labels, self._families, self._pairs = labels, [], []
        self._labelled: list[tuple[CounterFamily, Any, dict[tuple[str, ...], Any]]] = []
        for metric in metrics:
            family = pb.MetricFamily(name=metric.name, description=metric.description, kind=kinds[type(metric)])
            if isinstance(metric, CounterFamily):
                self._labelled.append((metric, family, {}))
                continue
            extra = {"buckets": list(metric.buckets)} if isinstance(metric, Histogram) else {}
            self._families.append(family)  # Triton forgets a metric whose family object is gone
            self._pairs.append((metric, family.Metric(labels=labels, **extra)))
        self._seen: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._copy()

    def _loop(self) -> None:
        while not self._stop.wait(_METRICS_PERIOD_SECONDS):
            self._copy()

    def _copy(self) -> None:
        for metric, mirror in self._pairs:
            if isinstance(metric, Histogram):
                for value in metric.drain():
                    mirror.observe(value)
                continue
            value, seen = metric.value, self._seen.get(metric.name, 0.0)
            if value != seen:
                mirror.increment(value - seen) if isinstance(metric, Counter) else mirror.set(value)
                self._seen[metric.name] = value
        for counters, family, mirrors in self._labelled:
            for key, value in list(counters.values.items()):
                if key not in mirrors:
                    own = dict(zip(counters.labels, key, strict=True))
                    mirrors[key] = family.Metric(labels=self._labels | own)
                name = f"{counters.name}{key}"
                if value != (seen := self._seen.get(name, 0.0)):
                    mirrors[key].increment(value - seen)
                    self._seen[name] = value


def triton_model(stage_class: Any) -> type:
    """The ``TritonPythonModel`` of a stage class."""

    class TritonPythonModel:
        def initialize(self, args: dict[str, str]) -> None:
            config = json.loads(args["model_config"])
            name = config["name"]
            self.log = logging.getLogger("backends")
            self.log.handlers, self.log.propagate = [_TritonLog()], False
            self.log.setLevel(logging.INFO)
            decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
            self.status = not decoupled and getattr(stage_class, "replies_later", False)
            self.later = decoupled or self.status
            instances = sum(int(group.get("count", 1)) for group in config.get("instance_group", []))
            parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
            try:
                if getattr(stage_class, "one_instance", True) and instances > 1:
                    raise Internal(
                        f"{name}: instance_group count is {instances}; streams live in one process: 1 is the limit"
                    )
                settings = load_settings(stage_class.Settings, name, parameters, overrides(name))
                self.stage: Stage = stage_class(settings, StageContext(name, self.log))
            except VoxstageError as error:
                raise pb.TritonModelException(str(error)) from None
            self.mirror = _MetricsMirror(self.stage.metrics, {"model": name, "version": args["model_version"]})

        def execute(self, requests: list[Any]) -> list[Any] | None:
            wrapped = [StageRequest(raw, self.later, self.status) for raw in requests]
            for request in wrapped:
                try:
                    self.stage.execute(request)
                except VoxstageError as error:
                    request.fail(error)
                except Exception as error:
                    self.log.exception("a request failed")
                    request.fail(Internal(f"{type(error).__name__}: {error}"))
            return None if self.later else [request.response for request in wrapped]

        def finalize(self) -> None:
            self.stage.close()
            self.mirror.close()

    return TritonPythonModel


def strings(*values: str) -> NDArray[Any]:
    """A BYTES tensor of the given strings."""
    return np.array([value.encode("utf-8") for value in values], dtype=np.object_)
