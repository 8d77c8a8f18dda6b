"""``engine.json``: what an engine was built from and for, and whether that is what is wanted here.

Standard library only: ``serve.py`` reads it before anything is started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from backends.errors import CheckpointError

#: Beside the engine that Triton reads, and beside those that it does not.
FILES = {
    "tensorrt": ("model.plan", "engine.json"),
    "tensorrt_rtx": ("model.rtx.plan", "engine.rtx.json"),
    "onnx": ("model.onnx", "engine.onnx.json"),
}
#: Told to people, not compared: another driver or another day makes no other engine.
TOLD = frozenset({"driver", "built", "build_seconds", "agreement", "agreement_missing_because", "opt"})


@dataclass(frozen=True)
class Passport:
    """One engine. ``minimum``, ``opt``, ``maximum``: [batch, samples] of the optimisation profile.

    ``gpu`` and ``driver`` are None for an engine built where no GPU is; ``compute_capability`` is then what was asked
    for, e.g. "8.9" or "8.9,12.0". ``agreement``: share of codes equal to torch's; None where it could not be measured,
    and ``agreement_missing_because`` says why. ``engine_sha256`` is of the engine's file.
    """

    stage: str
    runtime: str
    runtime_version: str
    gpu: str | None
    compute_capability: str | None
    driver: str | None
    precision: str
    codebooks: int
    minimum: tuple[int, int]
    opt: tuple[int, int]
    maximum: tuple[int, int]
    onnx_sha256: str
    checkpoint_sha256: str
    engine_sha256: str
    built: str
    build_seconds: float
    agreement: float | None
    agreement_missing_because: str | None

    def to_json(self) -> str:
        """For ``engine.json``."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Passport:
        """CheckpointError where the file is missing, broken, or lacks a field."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or (wrong := sorted(names ^ values.keys())):
            raise CheckpointError(f"{path} is no passport of this version: {', '.join(wrong) or 'not an object'}")
        for name in ("minimum", "opt", "maximum"):
            if not isinstance(values[name], list) or [type(number) for number in values[name]] != [int, int]:
                raise CheckpointError(f"{path}: {name} is {values[name]!r}, not [batch, samples]")
            values[name] = tuple(values[name])
        return cls(**values)

    def disagreement(self, wanted: Mapping[str, Any]) -> str | None:
        """The first field that is not as ``wanted``, with both values, in one sentence; None when all are.

        A field that ``wanted`` leaves out is not compared. ``maximum`` may be larger than wanted, ``minimum`` smaller.
        """
        for name, value in wanted.items():
            own = getattr(self, name)
            if name == "maximum":
                fits = all(have >= want for have, want in zip(own, value, strict=True))
            elif name == "minimum":
                fits = all(have <= want for have, want in zip(own, value, strict=True))
            else:
                fits = own == value
            if not fits:
                return f"{name} is {_shown(own)} in the engine's passport and {_shown(value)} here"
        return None


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)
