"""Why a server did not start or did not go on, in words for its last sentence."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from backends.launch.process import ServerProcess
from backends.launch.repository import Model

#: How Triton says that the process of a stage has ended.
_DEAD_STUB = re.compile(r"Stub process '[^']+' is not healthy")


def why_not_started(server: ServerProcess, models: Sequence[Model]) -> str:
    """What failed and why, of a server that has ended: each reason once, with the stages that gave it."""
    log = server.log
    if log.address_in_use:
        return f"Triton could not listen: {log.address_in_use}"
    stages: dict[str, list[str]] = {}
    for model in models:
        if model.is_stage and model.name in log.failed:
            why = log.failed[model.name]
            if _DEAD_STUB.search(why):
                why = f"its process {how_stage_ended(server, model.name)}; --log-verbose 1 shows all that was said"
            stages.setdefault(why, []).append(model.name)
    if stages:
        return "; ".join(f"{_the_stages(names)} failed to load: {why}" for why, names in stages.items())
    if log.failed:
        name, why = next(iter(log.failed.items()))
        return f"the model {name} failed to load: {why}"
    return why_ended(server, "starting")


def why_ended(server: ServerProcess, doing: str) -> str:
    """How a server ended while it was ``doing`` something, and its last error or else its last line."""
    log = server.log
    last = next((line.strip() for line in reversed(log.last) if line.strip()), "it said nothing")
    return f"Triton {_ending(server.poll())} while {doing}: {log.last_error() or last}"


def how_stage_ended(server: ServerProcess, stage: str) -> str:
    """The rest of a sentence about the process of ``stage``."""
    code = server.ending(stage)
    if code is None:
        return "died"
    return _ending(code) + (", as the kernel does when memory runs out" if code == -signal.SIGKILL else "")


def _the_stages(names: Sequence[str]) -> str:
    return f"the stage {names[0]}" if len(names) == 1 else f"the stages {', '.join(names[:-1])} and {names[-1]}"


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
