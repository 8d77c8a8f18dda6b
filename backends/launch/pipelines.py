"""Which models a server serves: those of the pipelines that were asked for, and those that belong to none."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from backends.launch.failure import USAGE, LaunchError
from backends.launch.repository import Model

#: Pipelines, each an ensemble of that name; its stages begin with it.
PIPELINES = ("tts", "asr")
#: Stages that do not, by the pipeline that calls them.
_CALLED = {"audio_encoder": "tts"}


def pipeline_of(name: str) -> str | None:
    """The pipeline that the model ``name`` belongs to; None for a model of somebody else, which is always served."""
    head = name.partition("_")[0]
    return _CALLED.get(name) or (head if head in PIPELINES else None)


def choose_models(models: Sequence[Model], pipelines: Collection[str]) -> list[Model]:
    """The models to serve. Raises LaunchError when none is left."""
    chosen = [model for model in models if pipeline_of(model.name) in (None, *pipelines)]
    if not chosen:
        raise LaunchError(
            f"--pipelines {','.join(pipelines)}: the repositories hold no model of it, only "
            f"{', '.join(model.name for model in models)}",
            USAGE,
        )
    return chosen
