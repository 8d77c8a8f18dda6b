"""ONNX -> engine, for TensorRT and for TensorRT-RTX: the same interface under two module names.

TensorRT builds for the GPU it runs on and times kernels there. TensorRT-RTX (GeForce and RTX cards) also builds on a
machine without a GPU, for compute capabilities that are named; its engines are finished on the card that loads them.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.encoder.export import write_atomically
from backends.errors import Internal, InvalidArgument

_MODULES = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt_rtx_bindings"}
_PACKAGES = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx-cu13-bindings tensorrt-rtx-cu13-libs"}
#: precision -> the flags that are set; what is not named is switched off.
_FLAGS: dict[str, tuple[str, ...]] = {"fp32": (), "tf32": ("TF32",), "fp16": ("FP16",), "bf16": ("BF16",)}
#: Seconds between two lines of progress.
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class BuildOrder:
    """What to build. Shapes are [batch, samples]; ``capabilities`` such as ("SM89", "SM120"), empty: this GPU."""

    precision: str
    minimum: tuple[int, int]
    opt: tuple[int, int]
    maximum: tuple[int, int]
    capabilities: tuple[str, ...] = ()


def load_runtime(runtime: str) -> Any:
    """The Python module of ``tensorrt`` or ``tensorrt_rtx``. InvalidArgument, with the package to install, if there is
    none."""
    try:
        return importlib.import_module(_MODULES[runtime])
    except ImportError as error:
        raise InvalidArgument(
            "runtime", f"{runtime} is not installed here (pip install {_PACKAGES[runtime]}): {error}"
        ) from None


class EngineBuilder:
    """``trt``: the module of :func:`load_runtime`. ``say`` gets lines of progress."""

    def __init__(self, trt: Any, say: Callable[[str], None]) -> None:
        self._trt, self._say = trt, say
        self._log = _log_class(trt)(say)
        # Three numbers, as in the name of the library that Triton loads; a wheel may have more.
        self.version = ".".join(str(trt.__version__).split(".")[:3])

    def check(self, order: BuildOrder) -> None:
        """InvalidArgument for a precision or a compute capability that this runtime does not build."""
        for name in _FLAGS[order.precision]:
            if not hasattr(self._trt.BuilderFlag, name):
                raise InvalidArgument(
                    "precision",
                    f"{order.precision} is not built by {self._trt.__name__} {self.version}; fp32 and tf32 are",
                )
        known = self._capabilities()
        for name in order.capabilities:
            if name not in known:
                raise InvalidArgument(
                    "compute-capability",
                    f"{name} is not one that {self._trt.__name__} {self.version} builds for"
                    + (f": {', '.join(known)}" if known else "; it builds for the GPU at hand"),
                )

    def build(self, model: bytes, order: BuildOrder, timing_cache: Path) -> bytes:
        """The serialised engine of an ONNX model. Internal, with TensorRT's own words, when it fails."""
        self.check(order)
        trt, self._log.errors = self._trt, []
        builder = trt.Builder(self._log)
        network = builder.create_network(_network_flags(trt))
        parser = trt.OnnxParser(network, self._log)
        if not parser.parse(model):
            problems = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
            raise Internal(f"{trt.__name__} {self.version} cannot read the ONNX model: {problems}")
        config = builder.create_builder_config()
        self._set_flags(config, order)
        profile = builder.create_optimization_profile()
        profile.set_shape(network.get_input(0).name, order.minimum, order.opt, order.maximum)
        config.add_optimization_profile(profile)
        monitor = _monitor_class(trt)(self._say) if hasattr(trt, "IProgressMonitor") else None
        if monitor is not None:
            config.progress_monitor = monitor
        timed = not order.capabilities  # what is built for another GPU is not timed
        if timed:
            self._take_timings(config, timing_cache)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise Internal(
                f"{trt.__name__} {self.version} failed to build: {'; '.join(self._log.errors) or 'no reason given'}"
            )
        if timed:
            write_atomically(timing_cache, bytes(config.get_timing_cache().serialize()))
        return bytes(plan)

    def _take_timings(self, config: Any, path: Path) -> None:
        """Timings of earlier builds; those of another GPU or version, or a broken file, are left out."""
        for content in (path.read_bytes() if path.exists() else b"", b""):
            cache = config.create_timing_cache(content)
            if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
                return

    def _set_flags(self, config: Any, order: BuildOrder) -> None:
        flags = self._trt.BuilderFlag
        config.clear_flag(flags.TF32)  # on by default, and it rounds what the quantizer decides by
        for name in _FLAGS[order.precision]:
            config.set_flag(getattr(flags, name))
        # A clip's codes must not depend on its batch: this asks for the same operations for every row. Older versions
        # have no such flag.
        if hasattr(flags, "DISTRIBUTIVE_INDEPENDENCE"):
            config.set_flag(flags.DISTRIBUTIVE_INDEPENDENCE)
        if order.capabilities:
            config.num_compute_capabilities = len(order.capabilities)
            for i, name in enumerate(order.capabilities):
                config.set_compute_capability(getattr(self._trt.ComputeCapability, name), i)

    def _capabilities(self) -> list[str]:
        names = [name for name in dir(getattr(self._trt, "ComputeCapability", None)) if name.startswith("SM")]
        return sorted(names, key=lambda name: int(name[2:]))


def _network_flags(trt: Any) -> int:
    """TensorRT before 10 wants to be told that the batch is a dimension of the graph."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    return 0 if flag is None or int(trt.__version__.split(".")[0]) >= 10 or "rtx" in trt.__name__ else 1 << int(flag)


def _log_class(trt: Any) -> type:
    """A logger of this module: errors are kept for the sentence, warnings are said."""

    class Log(trt.ILogger):
        def __init__(self, say: Callable[[str], None]) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self._say = say

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)
            elif severity == trt.ILogger.WARNING:
                self._say(message)

    return Log


def _monitor_class(trt: Any) -> type:
    """Lines about the phases of a long build, a few seconds apart. Called from threads of the builder."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self, say: Callable[[str], None]) -> None:
            trt.IProgressMonitor.__init__(self)
            self._say, self._said = say, time.monotonic()
            self._steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self._steps[phase] = steps

        def step_complete(self, phase: str, step: int) -> bool:
            now = time.monotonic()
            if now - self._said > _PROGRESS_SECONDS:
                self._said = now
                self._say(f"{phase}: {step + 1} of {self._steps.get(phase, '?')}")
            return True

        def phase_finish(self, phase: str) -> None:
            self._steps.pop(phase, None)

    return Monitor


def say_on_stderr(line: str) -> None:
    """Progress belongs on standard error."""
    print(line, file=sys.stderr, flush=True)
