"""The command line of ``serve.py``, and what ``--set``, ``--checkpoint`` and ``--device`` mean for the stages."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.launch.failure import USAGE, LaunchError
from backends.launch.parameters import parameter_names
from backends.launch.pipelines import PIPELINES, pipeline_of
from backends.launch.repository import Model
from backends.settings import DEVICE, hint

#: stage → key → value, as the stages read it from VOXSTAGE_OVERRIDES.
Overrides = dict[str, dict[str, str]]

_SETTING = re.compile(r"(?P<stage>[^.=]+)\.(?P<key>[^=]+)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Options:
    """A checked command line. A port of 0 asks for a free one. Times are in seconds."""

    repositories: tuple[Path, ...]
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    pipelines: tuple[str, ...] = ("tts",)
    checkpoint: Path | None = None
    asr_checkpoint: Path | None = None
    device: str | None = None
    config_name: str | None = None
    settings: tuple[str, ...] = ()
    log_verbose: int = 0
    exit_timeout: int = 10
    load_timeout: float = 600.0
    canary_interval: float = 30.0
    canary_timeout: float = 20.0
    ready_file: Path | None = None

    @property
    def ports(self) -> dict[str, int]:
        """Service → port, under the names of the options."""
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise LaunchError(message, USAGE)


def parse_options(arguments: Sequence[str], root: Path) -> Options:
    """Read the command line. ``root`` is the repository root. Raises LaunchError for what is out of its limits."""
    parser = _Parser(
        prog="serve.py",
        description="Start Triton on the Voxstage models, wait until it speaks, and watch over it.",
        epilog="Exit codes: 0 ended as asked, 1 failed while starting or serving, 2 wrong command line or files, "
        "130 or 143 killed by a second SIGINT or SIGTERM.",
    )
    add = parser.add_argument
    add(
        "--model-repository",
        type=Path,
        action="append",
        metavar="DIR",
        help="repeatable; default: the two of this project",
    )
    add(
        "--pipelines",
        type=_pipelines,
        default=Options.pipelines,
        metavar="tts|asr|tts,asr",
        help="what to serve (default: tts); models of neither are served in any case",
    )
    add(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="folder with tts/ and codec/; default: what the stages' configs say",
    )
    add(
        "--asr-checkpoint",
        type=Path,
        metavar="DIR",
        help="speech-to-text checkpoint; default: Whisper tiny.en, made at the first start",
    )
    add("--device", type=_device, metavar="auto|cpu|cuda[:N]", help="default: what the stages' configs say")
    add("--host", default=Options.host, help="address to listen on (default: %(default)s, this machine only)")
    add(
        "--http-port",
        type=_port,
        default=Options.http_port,
        metavar="PORT",
        help="default: %(default)s; 0 = any free port",
    )
    add(
        "--grpc-port",
        type=_port,
        default=Options.grpc_port,
        metavar="PORT",
        help="default: %(default)s; 0 = any free port",
    )
    add(
        "--metrics-port", type=_port, default=Options.metrics_port, metavar="PORT", help="default: %(default)s; 0 = any"
    )
    add("--model-config-name", metavar="NAME", help="use each model's configs/NAME.pbtxt where it has one")
    add(
        "--set",
        action="append",
        default=[],
        metavar="STAGE.KEY=VALUE",
        help="override a parameter of a stage; repeatable",
    )
    add(
        "--log-verbose",
        type=_whole,
        default=0,
        metavar="N",
        help="0: warnings and errors of Triton, 1: its whole log, 2+: more",
    )
    add(
        "--exit-timeout-secs",
        type=_whole,
        default=Options.exit_timeout,
        metavar="S",
        help="let running requests end first, this long at most (%(default)s)",
    )
    add(
        "--load-timeout",
        type=_seconds,
        default=Options.load_timeout,
        metavar="S",
        help="limit for loading (default: %(default)s)",
    )
    add(
        "--canary-interval",
        type=_seconds,
        default=Options.canary_interval,
        metavar="S",
        help="between checks; 0 = off (%(default)s)",
    )
    add(
        "--canary-timeout",
        type=_seconds,
        default=Options.canary_timeout,
        metavar="S",
        help="limit for a check (%(default)s)",
    )
    add("--ready-file", type=Path, metavar="FILE", help="write ports and process ids there, as JSON, once serving")
    read = parser.parse_args(arguments)
    options = Options(
        repositories=tuple(
            path.resolve() for path in read.model_repository or (root / "model_repository", root / "ensemble")
        ),
        host=read.host,
        http_port=read.http_port,
        grpc_port=read.grpc_port,
        metrics_port=read.metrics_port,
        pipelines=read.pipelines,
        checkpoint=read.checkpoint.resolve() if read.checkpoint else None,
        asr_checkpoint=read.asr_checkpoint.resolve() if read.asr_checkpoint else None,
        device=read.device,
        config_name=read.model_config_name,
        settings=tuple(read.set),
        log_verbose=read.log_verbose,
        exit_timeout=read.exit_timeout_secs,
        load_timeout=read.load_timeout,
        canary_interval=read.canary_interval,
        canary_timeout=read.canary_timeout,
        ready_file=read.ready_file,
    )
    fixed = [port for port in options.ports.values() if port]
    if len(set(fixed)) < len(fixed):
        raise LaunchError(f"http, grpc and metrics need three different ports, not {', '.join(map(str, fixed))}", USAGE)
    return options


def find_overrides(options: Options, models: Sequence[Model], left_out: Sequence[Model] = ()) -> Overrides:
    """What the command line changes in the stages. Raises LaunchError for an unknown stage or key.

    ``left_out``: models that the repositories hold and ``--pipelines`` does not ask for.
    """
    stages = {model.name: model for model in models if model.is_stage}
    others = {model.name for model in left_out if model.is_stage}
    overrides: Overrides = {}
    voice = [name for name in stages if pipeline_of(name) != "asr"]
    heard = [name for name in stages if pipeline_of(name) == "asr"]
    for option, key, value, among in (
        ("checkpoint", "checkpoint", options.checkpoint, voice),
        ("asr-checkpoint", "checkpoint", options.asr_checkpoint, heard),
        ("device", "device", options.device, [*stages]),
    ):
        takers = [name for name in among if key in parameter_names(stages[name])]
        if value is not None and not takers:
            pipeline = "asr" if option == "asr-checkpoint" else "tts"
            if option != "device" and pipeline not in options.pipelines:
                raise LaunchError(f"--{option} {value} is for {_switch_on(options, pipeline)}", USAGE)
            raise LaunchError(f"--{option} means nothing here: no stage has a parameter '{key}'", USAGE)
        for name in takers if value is not None else ():
            overrides.setdefault(name, {})[key] = str(value)
    for setting in options.settings:
        match = _SETTING.fullmatch(setting)
        if match is None:
            raise LaunchError(f"--set {setting!r} is not of the form STAGE.KEY=VALUE", USAGE)
        name, key, text = match.group("stage", "key", "value")
        if name in others:
            pipeline = pipeline_of(name) or name
            raise LaunchError(f"--set {setting}: {name} is a stage of {_switch_on(options, pipeline)}", USAGE)
        if name not in stages:
            nearest = hint(name, {*stages, *others}, "the stages are")
            raise LaunchError(f"--set {setting}: no stage is called '{name}'; {nearest}", USAGE)
        known = parameter_names(stages[name])
        if key not in known:
            raise LaunchError(f"--set {setting}: {name} has no parameter '{key}'; {hint(key, known)}", USAGE)
        overrides.setdefault(name, {})[key] = text
    return overrides


def _switch_on(options: Options, pipeline: str) -> str:
    """What to say of a ``pipeline`` that is not served."""
    wanted = ",".join(name for name in PIPELINES if name in (*options.pipelines, pipeline))
    served = " and ".join(options.pipelines)
    return f"the pipeline {pipeline}, and only {served} is served; start it with --pipelines {wanted}"


def _pipelines(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PIPELINES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PIPELINES)}")
    return tuple(name for name in PIPELINES if name in names)


def _port(text: str) -> int:
    port = _whole(text)
    if port > 65535:
        raise argparse.ArgumentTypeError(f"{port} is above 65535, the largest port")
    return port


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 1000000")
    return value


def _device(text: str) -> str:
    pattern, words = DEVICE
    if not pattern.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}")
    return text
