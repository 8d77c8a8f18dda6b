"""The frame-local transformer: GPT-2 style blocks over the few positions inside one frame."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from backends.errors import CheckpointError
from backends.kernels import add_layer_norm, frame_attention
from backends.models.linear import linear_activation
from backends.models.protocol import CodeReader

_ACTIVATIONS = ("silu", "gelu_new", "gelu")


class _Attention(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(hidden, 3 * hidden)
        self.c_proj = nn.Linear(hidden, hidden)


class _MLP(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc_in = nn.Linear(hidden, inner)
        self.fc_out = nn.Linear(inner, hidden)


class _Block(nn.Module):
    """Pre-norm block; its norms are computed with the sums in front of them."""

    def __init__(self, hidden: int, inner: int, eps: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden, eps=eps)
        self.attn = _Attention(hidden)
        self.ln_2 = nn.LayerNorm(hidden, eps=eps)
        self.mlp = _MLP(hidden, inner)


class FrameTransformer(nn.Module):
    """Blocks that read one frame by positions: position 0 is the backbone's state, position c the code c - 1."""

    def __init__(self, config: dict[str, Any], positions: int) -> None:
        """``config``: the ``gpt2_config`` of the checkpoint. ``positions``: codebooks + 1."""
        super().__init__()
        positional = config.get("position_embedding_type", "absolute")
        if positional not in ("absolute", "rope"):
            raise CheckpointError(f"gpt2_config.position_embedding_type {positional!r} is not absolute or rope")
        activation = config["activation_function"]
        if activation not in _ACTIVATIONS:
            known = sorted(_ACTIVATIONS)
            raise CheckpointError(f"gpt2_config.activation_function {activation!r} is not one of {known}")
        hidden, self.heads, self.positions = config["n_embd"], config["n_head"], positions
        inner = config["n_inner"] or 4 * hidden
        # The small voice learned a vector a position; the public v1.5 release turns queries and keys instead.
        self.wpe = nn.Embedding(positions, hidden) if positional == "absolute" else None
        self.eps, self.scale, self.activation = config["layer_norm_epsilon"], (hidden // self.heads) ** -0.5, activation
        self.h = nn.ModuleList(_Block(hidden, inner, self.eps) for _ in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(hidden, eps=self.eps)
        self._rope = None if self.wpe is not None else float(config.get("rope_base", 10_000.0))
        self._tables: tuple[Tensor | None, Tensor | None] | None = None

    def new_cache(self, hidden: Tensor) -> list[Tensor]:
        """Empty keys and values of one frame for ``hidden`` [B, hidden]; a frame starts from nothing."""
        count, width = hidden.shape
        shape = (2, count, self.heads, self.positions, width // self.heads)
        return [torch.empty(shape, dtype=hidden.dtype, device=hidden.device) for _ in self.h]

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The backbone's state ``x`` [B, hidden] as position 0: (normed, x) for :meth:`step`."""
        first: Any = self.h[0]
        return add_layer_norm(x, self.position_row(0), first.ln_1.weight, first.ln_1.bias, self.eps)

    def reader(self, table: Tensor, offset: int, position: int) -> CodeReader:
        """How a code enters at ``position``, through ``table`` at ``offset``."""
        first: Any = self.h[0]
        return CodeReader(table, offset, self.position_row(position), first.ln_1.weight, first.ln_1.bias, self.eps)

    def position_row(self, position: int) -> Tensor | None:
        """The vector of a position; None where positions turn queries and keys instead."""
        return None if self.wpe is None else self.wpe.weight[position]

    def step(self, normed: Tensor, x: Tensor, position: int, cache: list[Tensor]) -> Tensor:
        """``x`` [B, hidden] and its first norm at ``position`` -> normed state. Positions come in order from 0."""
        cos, sin = self._rotary(x)
        blocks: list[Any] = list(self.h)
        for index, (block, layer_cache) in enumerate(zip(blocks, cache, strict=True)):
            mixed = frame_attention(block.attn.c_attn(normed), layer_cache, position, self.scale, cos, sin)
            normed, x = add_layer_norm(block.attn.c_proj(mixed), x, block.ln_2.weight, block.ln_2.bias, self.eps)
            inner = block.mlp.fc_out(linear_activation(block.mlp.fc_in, normed, self.activation))
            after = blocks[index + 1].ln_1 if index + 1 < len(blocks) else self.ln_f
            normed, x = add_layer_norm(inner, x, after.weight, after.bias, self.eps)
        return normed

    def _rotary(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """cos and sin [positions, dim / 2] of RoPE (Su et al. 2021) on the pairs (0, 1), (2, 3) ... of a head."""
        if self._tables is None:
            if self._rope is None:
                self._tables = (None, None)
            else:
                dim = x.shape[1] // self.heads
                inverse = 1.0 / (self._rope ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
                angles = torch.arange(self.positions, dtype=torch.float32)[:, None] * inverse
                self._tables = (angles.cos().to(x), angles.sin().to(x))
        return self._tables
