"""Taking a checkpoint's tensors by their published names, so that both sides are known to agree completely."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.errors import CheckpointError
from backends.models.finite import check_finite


class NamedTensors:
    """Hands out every tensor once. A name that is missing, of another shape, or left over at the end is refused."""

    def __init__(self, tensors: dict[str, Tensor], source: str, device: torch.device, dtype: torch.dtype) -> None:
        self._left = dict(tensors)
        self._source, self.device, self.dtype = source, device, dtype

    def __contains__(self, name: str) -> bool:
        """True when the checkpoint holds ``name`` and nobody has taken it yet."""
        return name in self._left

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor ``name``, which must have ``shape`` and be finite, on the target device in the target dtype."""
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise CheckpointError(f"{self._source}: tensor {name} is missing")
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{self._source}: {name} has shape {list(tensor.shape)}, the config asks for {list(shape)}"
            )
        check_finite(tensor, name, self._source, self.dtype)
        return tensor.to(device=self.device, dtype=self.dtype)

    def ignore(self, *prefixes: str) -> None:
        """Drop what the caller has no use for: every tensor left whose name begins with one of ``prefixes``."""
        self._left = {name: tensor for name, tensor in self._left.items() if not name.startswith(prefixes)}

    def finish(self) -> None:
        """CheckpointError when tensors are left that the architecture did not ask for."""
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"{self._source}: not known to this architecture: {', '.join(names[:3])}{more}")


class RandomTensors(NamedTensors):
    """Weights of the asked shapes, drawn from a seed: for benchmarks and tests of shapes that no checkpoint here
    has."""

    def __init__(self, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__({}, "random weights", device, dtype)
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(self, name: str, *shape: int) -> Tensor:
        """Normal values with a standard deviation of one over the square root of the input width; norms near 1."""
        values = torch.randn(shape, generator=self._generator, device=self.device)
        values = 1.0 + 0.1 * values if len(shape) == 1 or shape[1:] == (1, 1) else values * shape[1] ** -0.5
        return values.to(device=self.device, dtype=self.dtype)
