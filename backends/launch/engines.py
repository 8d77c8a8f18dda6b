"""Models that Triton's TensorRT backend runs from a file: whether the file fits, before Triton refuses it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.checkpoint import spoken_codebooks
from backends.encoder.clip import ClipLimits
from backends.encoder.digest import checkpoint_digest, file_sha256
from backends.encoder.machine import Machine
from backends.encoder.passport import FILES, Passport
from backends.errors import VoxstageError
from backends.launch.failure import USAGE, LaunchError
from backends.launch.repository import Model
from backends.launch.triton import Triton


def check_engines(
    models: Sequence[Model], root: Path, checkpoint: Path | None, triton: Triton, machine: Machine | None = None
) -> None:
    """LaunchError, with the command that mends it, unless every engine fits machine, checkpoint and config.

    ``checkpoint``: of the command line; None: each model's own. ``machine``: None for this one.
    """
    engines = [model for model in models if model.is_engine]
    if not engines:
        return
    machine = machine or Machine.here()
    for model in engines:
        if not (triton.python_backend.parent / "tensorrt").is_dir():
            raise LaunchError(
                f"{model.name}: its config needs Triton's TensorRT backend, which {triton.server} has not; NGC's "
                "Triton images have it. Without --model-config-name the model runs in Python",
                USAGE,
            )
        _check(model, root / (checkpoint or model.parameters.get("checkpoint", "checkpoints/voice")), machine)


def _check(model: Model, checkpoint: Path, machine: Machine) -> None:
    engine, passport = (model.folder / "1" / name for name in FILES["tensorrt"])
    try:
        limits = ClipLimits.load(checkpoint / "codec", float(model.parameters.get("max_seconds", "60")))
        batch = max(1, int(_last(model.config, "max_batch_size") or 0))
        mend = shlex.join(_command(model, checkpoint, limits, batch))
        spoken, stated = spoken_codebooks(checkpoint), _codebooks(model)
        if None not in (spoken, stated) and spoken != stated:
            raise LaunchError(
                f"{model.name}: its config has {stated} codebooks in the dims of codes, and {checkpoint} speaks "
                f"{spoken}: change that number in the config in {model.folder}",
                USAGE,
            )
        if not engine.exists():
            raise LaunchError(f"{model.name} has no engine: {engine} does not exist; build it with: {mend}", USAGE)
        wanted: dict[str, Any] = {
            "stage": model.name,
            "runtime": "tensorrt",
            "runtime_version": machine.tensorrt,
            "gpu": machine.gpu,
            "compute_capability": machine.compute_capability,
            "codebooks": stated,
            "minimum": (1, limits.frame_samples),
            "maximum": (batch, limits.max_frames * limits.frame_samples),
            "checkpoint_sha256": checkpoint_digest(checkpoint / "codec"),
            "engine_sha256": file_sha256(engine),
        }
        # What this machine does not tell (no GPU seen, TensorRT in an unusual place) is not compared: Triton will.
        known = {name: value for name, value in wanted.items() if value is not None}
        problem = Passport.read(passport).disagreement(known)
    except VoxstageError as error:
        problem = str(error.args[0])
    if problem:
        raise LaunchError(f"{model.name}: the engine does not fit: {problem}; build it again with: {mend}", USAGE)


def _command(model: Model, checkpoint: Path, limits: ClipLimits, batch: int) -> list[str]:
    seconds = limits.max_frames * limits.hop / limits.sampling_rate
    command = ["python", "build_engines.py", "--stage", model.name, "--checkpoint", str(checkpoint)]
    return [*command, "--max-seconds", f"{seconds:g}", "--max-batch", str(batch), "--out", str(model.folder.parent)]


def _codebooks(model: Model) -> int | None:
    for output in model.config.get("output", []):
        if isinstance(output, dict) and output.get("name") == ["codes"]:
            last = output.get("dims", ["-1"])[-1]
            return int(last) if isinstance(last, str) and last != "-1" else None
    return None


def _last(config: Any, name: str) -> str | None:
    values = config.get(name, [])
    return values[-1] if values and isinstance(values[-1], str) else None
