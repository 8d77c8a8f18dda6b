"""The models of the repositories that will be served, as their ``config.pbtxt`` describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backends.launch.failure import USAGE, LaunchError
from backends.launch.pbtxt import Message, PbtxtError, parse_pbtxt

#: The name that stands for every model's ``config.pbtxt``.
DEFAULT_CONFIG = "default"


@dataclass(frozen=True)
class Model:
    """One model. A stage is one that runs in a Python process of its own; ``parameters`` are its knobs.

    ``steps`` are the models that an ensemble passes a request to. ``is_engine``: it runs in Triton's TensorRT backend,
    from a file; ``config`` is what its pbtxt says.
    """

    name: str
    folder: Path
    is_stage: bool
    inputs: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    is_engine: bool = False
    config: Message = field(default_factory=dict)


def find_models(repositories: Iterable[Path], config_name: str | None = None) -> list[Model]:
    """Read every model of ``repositories``. As in Triton, a model's ``configs/<config_name>.pbtxt`` wins.

    Raises LaunchError for a repository that is missing or empty, a config that cannot be read and a name used twice.
    """
    models: dict[str, Model] = {}
    for repository in repositories:
        if not repository.is_dir():
            raise LaunchError(f"the model repository {repository} does not exist", USAGE)
        found = [_read(path.parent, config_name) for path in sorted(repository.glob("*/config.pbtxt"))]
        if not found:
            raise LaunchError(f"the model repository {repository} holds no model (no */config.pbtxt)", USAGE)
        for model in found:
            if model.name in models:
                raise LaunchError(
                    f"the model {model.name} stands in two places: {models[model.name].folder} and {model.folder}",
                    USAGE,
                )
            models[model.name] = model
    if config_name not in (None, DEFAULT_CONFIG) and not any(
        (model.folder / "configs" / f"{config_name}.pbtxt").is_file() for model in models.values()
    ):
        known = sorted({path.stem for model in models.values() for path in model.folder.glob("configs/*.pbtxt")})
        raise LaunchError(
            f"--model-config-name {config_name}: no model has configs/{config_name}.pbtxt; "
            f"known: {', '.join([DEFAULT_CONFIG, *known])}",
            USAGE,
        )
    return list(models.values())


def _read(folder: Path, config_name: str | None) -> Model:
    path = folder / "config.pbtxt"
    if config_name is not None and (folder / "configs" / f"{config_name}.pbtxt").is_file():
        path = folder / "configs" / f"{config_name}.pbtxt"
    try:
        config = parse_pbtxt(path.read_text(encoding="utf-8"))
    except (OSError, PbtxtError, UnicodeDecodeError) as error:
        raise LaunchError(f"{path} cannot be read: {error}", USAGE) from None
    parameters: dict[str, str] = {}
    for entry in _messages(config, "parameters"):
        value = next(iter(_messages(entry, "value")), {})
        parameters[_text(entry, "key")] = _text(value, "string_value")
    return Model(
        name=_text(config, "name") or folder.name,
        folder=folder,
        is_stage=_text(config, "backend") == "python",
        inputs=tuple(_text(entry, "name") for entry in _messages(config, "input")),
        steps=tuple(
            _text(step, "model_name")
            for plan in _messages(config, "ensemble_scheduling")
            for step in _messages(plan, "step")
        ),
        parameters=parameters,
        is_engine=_text(config, "platform") == "tensorrt_plan" or _text(config, "backend") == "tensorrt",
        config=config,
    )


def _messages(message: Message, name: str) -> list[Message]:
    return [value for value in message.get(name, []) if isinstance(value, dict)]


def _text(message: Message, name: str) -> str:
    values = message.get(name, [])
    return values[-1] if values and isinstance(values[-1], str) else ""
