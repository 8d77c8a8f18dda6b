"""One engine from checkpoint to passport: exported, built if need be, measured, and put in place as a whole."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from backends.checkpoint import spoken_codebooks
from backends.encoder.builder import BuildOrder, EngineBuilder, load_runtime
from backends.encoder.clip import ClipLimits, frames_of
from backends.encoder.digest import checkpoint_digest, file_sha256
from backends.encoder.export import compare, export_encoder, sample_clips, write_atomically
from backends.encoder.machine import Machine
from backends.encoder.passport import FILES, Passport
from backends.errors import CheckpointError
from backends.models.moss_audio_tokenizer import MossAudioTokenizer

STAGE = "audio_encoder"
#: The length that an engine is tuned for: a usual reference clip.
_USUAL_SECONDS = 10.0
#: Frames of the clips that an engine is compared on, as far as they fit.
_COMPARED = (1, 2, 24, 25, 26, 125)


@dataclass(frozen=True)
class EnginePlan:
    """What was asked for. ``codec``: the codec's folder; ``out``: a model repository."""

    codec: Path
    runtime: str
    precision: str
    max_seconds: float
    max_batch: int
    capabilities: tuple[str, ...]
    out: Path

    @property
    def engine(self) -> Path:
        """Where the engine goes: where Triton looks for it."""
        return self.out / STAGE / "1" / FILES[self.runtime][0]

    @property
    def passport(self) -> Path:
        """Beside it."""
        return self.out / STAGE / "1" / FILES[self.runtime][1]


class EngineBuild:
    """``say`` gets lines of progress. Raises InvalidArgument for what cannot be built here."""

    def __init__(self, plan: EnginePlan, say: Callable[[str], None], machine: Machine | None = None) -> None:
        self.plan, self._say = plan, say
        self._machine = machine or Machine.here()
        self._builder: EngineBuilder | None = None
        self._trt: Any = None
        limits = ClipLimits.load(plan.codec, plan.max_seconds)
        self._max_frames, frame = limits.max_frames, limits.frame_samples
        self._codebooks = spoken_codebooks(plan.codec.parent)
        usual = min(frames_of(_USUAL_SECONDS, limits.sampling_rate, limits.hop), limits.max_frames)
        self.order = BuildOrder(
            precision=plan.precision,
            minimum=(1, frame),
            opt=(1, usual * frame),
            maximum=(plan.max_batch, limits.max_frames * frame),
            capabilities=plan.capabilities,
        )
        if plan.runtime != "onnx":
            self._trt = load_runtime(plan.runtime)
            self._builder = EngineBuilder(self._trt, say)
            self._builder.check(self.order)
        self._model = export_encoder(plan.codec, self._max_frames, self._codebooks)

    def verdict(self) -> str | None:
        """Why the engine in place has to be built (again); None when it fits."""
        if not self.plan.engine.exists():
            return f"{self.plan.engine} does not exist"
        try:
            return Passport.read(self.plan.passport).disagreement(self._wanted())
        except CheckpointError as error:
            return str(error.args[0])

    def run(self) -> Passport:
        """Build, measure, replace. Whatever fails leaves the old engine and its passport as they were."""
        began = time.perf_counter()
        if self._builder is None:
            engine = self._model
        else:
            engine = self._builder.build(self._model, self.order, self.plan.engine.with_suffix(".timing"))
        seconds = time.perf_counter() - began
        agreement, why_not = self._measure(engine)
        passport = self._write(engine, seconds, agreement, why_not)
        self._say(f"{self.plan.engine}: {len(engine) / 1e6:.1f} MB in {seconds:.1f} s")
        return passport

    def _wanted(self) -> dict[str, Any]:
        wanted = self._facts()
        wanted["engine_sha256"] = file_sha256(self.plan.engine)
        return wanted

    def _facts(self) -> dict[str, Any]:
        plan, machine = self.plan, self._machine
        here = plan.runtime == "tensorrt"  # the others do not depend on the machine that builds
        named = ",".join(f"{name[2:-1]}.{name[-1]}" for name in plan.capabilities) or None
        return {
            "stage": STAGE,
            "runtime": plan.runtime,
            "runtime_version": self._version(),
            "gpu": machine.gpu if here else None,
            "compute_capability": machine.compute_capability if here else named,
            "precision": plan.precision,
            "codebooks": self._written_codebooks(),
            "minimum": self.order.minimum,
            "maximum": self.order.maximum,
            "onnx_sha256": hashlib.sha256(self._model).hexdigest(),
            "checkpoint_sha256": checkpoint_digest(plan.codec),
        }

    def _version(self) -> str:
        if self._builder is not None:
            return self._builder.version
        import onnx

        return str(onnx.__version__)

    def _written_codebooks(self) -> int:
        import onnx

        (output,) = onnx.load_model_from_string(self._model).graph.output
        return int(output.type.tensor_type.shape.dim[2].dim_value)

    def _measure(self, engine: bytes) -> tuple[float | None, str | None]:
        """The share of codes equal to torch's on the CPU, or the reason why it was not measured."""
        codec = MossAudioTokenizer.load(self.plan.codec, codebooks=self._codebooks)
        clips = sample_clips(codec, [frames for frames in _COMPARED if frames <= self._max_frames])
        if self.plan.runtime == "onnx":
            from backends.encoder.runtime import OnnxEncoder

            return compare(OnnxEncoder(engine, 1).encode, codec, clips).share, None
        import torch

        if not torch.cuda.is_available():
            return None, "no GPU that torch can use where the engine was built"
        from backends.encoder.engine import EngineEncoder

        encoder = EngineEncoder(self._trt, engine, codec.codebooks, codec.frame_samples)
        return compare(encoder.encode, codec, clips).share, None

    def _write(self, engine: bytes, seconds: float, agreement: float | None, why_not: str | None) -> Passport:
        passport = Passport(
            **self._facts(),
            driver=self._machine.driver if self.plan.runtime == "tensorrt" else None,
            opt=self.order.opt,
            engine_sha256=hashlib.sha256(engine).hexdigest(),
            built=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            build_seconds=round(seconds, 1),
            agreement=agreement,
            agreement_missing_because=why_not,
        )
        # Engine first: a crash in between leaves a passport that names another engine, and that is noticed.
        write_atomically(self.plan.engine, engine)
        write_atomically(self.plan.passport, passport.to_json().encode())
        return passport
