"""Reading a published checkpoint folder: ``config.json`` and (sharded) safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from backends.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; CheckpointError where it is missing or broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of ``folder``: one ``model.safetensors``, or the shards that the index names."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(read_json(index)["weight_map"].values()))]
    return [folder / "model.safetensors"]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint by its published name, in its stored dtype, on the CPU."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if not path.exists():
            raise CheckpointError(f"{path} is missing")
        try:
            with safe_open(str(path), framework="pt") as file:
                tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (not a dict)
        except Exception as error:  # safetensors raises its own type for a damaged header
            raise CheckpointError(f"{path} cannot be read: {error}") from None
    return tensors


def load_weights(model: nn.Module, folder: Path, dtype: torch.dtype) -> None:
    """Copy the checkpoint into ``model`` by name. Names and shapes must agree completely, both ways."""
    tensors = {name: tensor.to(dtype) for name, tensor in read_tensors(folder).items()}
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise CheckpointError(
            f"{folder}: {len(missing)} tensors missing {missing[:3]}, {len(unknown)} not known to this architecture {unknown[:3]}"
        )
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise CheckpointError(f"{folder}: {name} has shape {list(tensor.shape)}, expected {list(own[name].shape)}")
    model.load_state_dict(tensors)
