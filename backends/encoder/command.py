"""The command line of ``build_engines.py``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from backends.checkpoint import inspect_checkpoint
from backends.encoder.passport import FILES
from backends.errors import InvalidArgument

_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
_NO_ENGINE = {
    "asr_encoder": "it runs in Python, with CUDA graphs where its model has them; only audio_encoder has an engine",
    "vocoder": "tts_vocoder keeps the state of its streams between steps and runs in Python; only audio_encoder has an "
    "engine",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise InvalidArgument("command line", message)


def main(arguments: Sequence[str], root: Path) -> int:
    """0: the engine is there and fits; 1 (``--explain`` only): it does not. Raises VoxstageError for the rest."""
    options = _parse(arguments, root)
    checkpoint = inspect_checkpoint(options.checkpoint)
    # Later, not at the top: torch takes seconds, and a wrong command line should not.
    from backends.encoder.build import EngineBuild, EnginePlan
    from backends.encoder.builder import say_on_stderr

    plan = EnginePlan(
        codec=checkpoint.codec.folder,
        runtime=options.runtime,
        precision=options.precision,
        max_seconds=options.max_seconds,
        max_batch=options.max_batch,
        capabilities=options.compute_capability,
        out=options.out,
    )
    build = EngineBuild(plan, say_on_stderr)
    reason = build.verdict()
    if options.explain:
        print(plan.passport.read_text(encoding="utf-8") if plan.passport.exists() else f"no {plan.passport}")
        print(f"would be built: {reason}" if reason else "fits: would not be built again")
        return 1 if reason else 0
    if reason is None:
        print(f"{plan.engine} fits: not built again")
        return 0
    say_on_stderr(f"building {plan.engine}: {reason}")
    passport = build.run()
    measured = (
        f"not compared with torch: {passport.agreement_missing_because}"
        if passport.agreement is None
        else f"{passport.agreement:.4%} of the codes equal torch's"
    )
    print(f"{plan.engine} built in {passport.build_seconds:.1f} s; {measured}")
    return 0


def _parse(arguments: Sequence[str], root: Path) -> argparse.Namespace:
    parser = _Parser(
        prog="build_engines.py",
        description="Build the engine of a stage from a checkpoint, with a passport that says what it fits.",
        epilog="Exit codes: 0 the engine is in place, 1 it failed (--explain: it does not fit), 2 wrong command line.",
    )
    add = parser.add_argument
    add(
        "--checkpoint",
        type=Path,
        default=root / "checkpoints" / "voice",
        metavar="DIR",
        help="folder with tts/, codec/",
    )
    add("--stage", default="audio_encoder", metavar="STAGE", help="audio_encoder (default)")
    add("--runtime", default="tensorrt", choices=tuple(FILES), help="default: %(default)s, which Triton serves")
    add(
        "--precision",
        default="fp32",
        choices=_PRECISIONS,
        help="default: %(default)s; what it costs is in the passport",
    )
    add("--max-seconds", type=_seconds, default=60.0, metavar="S", help="longest clip (default: %(default)g)")
    add("--max-batch", type=_count, default=8, metavar="N", help="largest batch (default: %(default)s)")
    add(
        "--compute-capability",
        type=_capabilities,
        default=(),
        metavar="SM89,SM120",
        help="GPUs to build for (tensorrt_rtx; tensorrt builds for the one at hand)",
    )
    add("--out", type=Path, default=root / "model_repository", metavar="DIR", help="model repository to put it in")
    add("--explain", action="store_true", help="build nothing: print the passport in place, and whether it fits")
    options = parser.parse_args(arguments)
    if options.stage in _NO_ENGINE:
        raise InvalidArgument("stage", f"{options.stage!r} cannot be built: {_NO_ENGINE[options.stage]}")
    if options.stage != "audio_encoder":
        raise InvalidArgument("stage", f"{options.stage!r} is not a stage with an engine; audio_encoder is")
    if options.runtime == "onnx" and options.precision != "fp32":
        raise InvalidArgument("precision", f"{options.precision} is not written to ONNX; weights stay fp32")
    if options.runtime != "tensorrt_rtx" and options.compute_capability:
        raise InvalidArgument("compute-capability", f"means nothing to {options.runtime}; only tensorrt_rtx takes it")
    if options.runtime == "tensorrt_rtx" and not options.compute_capability:
        raise InvalidArgument("compute-capability", "is missing: name the GPUs to build for, such as SM89")
    return options


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.08 <= value <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.08 to 600")
    return value


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 256")
    return int(text)


def _capabilities(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip().upper() for part in text.split(",")))
    for name in names:
        if not re.fullmatch(r"SM\d{2,3}", name):
            raise argparse.ArgumentTypeError(f"{name!r} is not of the form SM89")
    return names
