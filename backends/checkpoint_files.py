"""Reading a published checkpoint folder: (sharded) safetensors, by name."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from backends.errors import CheckpointError
from backends.json_file import read_json
from backends.models.finite import check_finite


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of ``folder``: one ``model.safetensors``, or the shards that the index names."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(read_json(index)["weight_map"].values()))]
    return [folder / "model.safetensors"]


def read_tensors(folder: Path, prefixes: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """Tensors of the checkpoint by their published names, in their stored dtypes, on the CPU.

    ``prefixes``: only names that begin with one of these are read: a stage that runs a part of a model loads a part.
    """
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if not path.exists():
            raise CheckpointError(f"{path} is missing")
        try:
            with safe_open(str(path), framework="pt") as file:
                names = [name for name in file.keys() if name.startswith(prefixes)]  # noqa: SIM118 (not a dict)
                tensors.update({name: file.get_tensor(name) for name in names})
        except Exception as error:  # safetensors raises its own type for a damaged header
            raise CheckpointError(f"{path} cannot be read: {error}") from None
    return tensors


def load_weights(model: nn.Module, folder: Path, dtype: torch.dtype, prefixes: tuple[str, ...] = ("",)) -> None:
    """Copy the checkpoint, or its tensors with one of ``prefixes``, into ``model`` by name. Names and shapes must agree
    completely, both ways, and all values be finite in ``dtype``.
    """
    tensors = read_tensors(folder, prefixes)
    for name, tensor in tensors.items():
        check_finite(tensor, name, str(folder), dtype)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise CheckpointError(
            f"{folder}: {len(missing)} tensors missing {missing[:3]}, {len(unknown)} unknown {unknown[:3]}"
        )
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise CheckpointError(f"{folder}: {name} has shape {list(tensor.shape)}, expected {list(own[name].shape)}")
    model.load_state_dict(tensors)
