"""The frame-local transformer: GPT-2 style blocks over the few positions inside one frame."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backends.errors import CheckpointError

_ACTIVATIONS = {"silu": F.silu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "gelu": F.gelu}


class _Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (hidden // heads) ** -0.5
        self.c_attn = nn.Linear(hidden, 3 * hidden)
        self.c_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, position: int, cache: Tensor) -> Tensor:
        """``x`` [B, hidden]; ``cache`` [2, B, heads, positions, dim], written at ``position`` in place."""
        count, hidden = x.shape
        q, k, v = self.c_attn(x).view(count, 3, self.heads, hidden // self.heads).unbind(1)
        cache[0, :, :, position], cache[1, :, :, position] = k, v
        keys, values = cache[0, :, :, : position + 1], cache[1, :, :, : position + 1]
        # At most codebooks + 1 keys: sums of products, one row and head at a time. The library's fused attention was
        # seen to divide its work by the batch (torch 2.13, CPU, two threads), which would change bits with the load.
        scores = (keys * q.unsqueeze(2)).sum(dim=-1) * self.scale
        out = (scores.softmax(dim=-1).unsqueeze(-1) * values).sum(dim=2)
        return self.c_proj(out.reshape(count, hidden))


class _MLP(nn.Module):
    def __init__(self, hidden: int, inner: int, activation: str) -> None:
        super().__init__()
        self.fc_in = nn.Linear(hidden, inner)
        self.fc_out = nn.Linear(inner, hidden)
        self.activation = _ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_out(self.activation(self.fc_in(x)))


class _Block(nn.Module):
    def __init__(self, hidden: int, heads: int, inner: int, activation: str, eps: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden, eps=eps)
        self.attn = _Attention(hidden, heads)
        self.ln_2 = nn.LayerNorm(hidden, eps=eps)
        self.mlp = _MLP(hidden, inner, activation)

    def forward(self, x: Tensor, position: int, cache: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), position, cache)
        return x + self.mlp(self.ln_2(x))


class FrameTransformer(nn.Module):
    """Blocks that read one frame by positions: position 0 is the backbone's state, position c the code c - 1."""

    def __init__(self, config: dict[str, Any], positions: int) -> None:
        """``config``: the ``gpt2_config`` of the checkpoint. ``positions``: codebooks + 1."""
        super().__init__()
        positional = config.get("position_embedding_type", "absolute")
        if positional != "absolute":
            raise CheckpointError(f"gpt2_config.position_embedding_type {positional!r} is not implemented")
        activation = config["activation_function"]
        if activation not in _ACTIVATIONS:
            known = sorted(_ACTIVATIONS)
            raise CheckpointError(f"gpt2_config.activation_function {activation!r} is not one of {known}")
        hidden, self.heads, self.positions = config["n_embd"], config["n_head"], positions
        inner = config["n_inner"] or 4 * hidden
        self.wpe = nn.Embedding(positions, hidden)
        eps = config["layer_norm_epsilon"]
        self.h = nn.ModuleList(_Block(hidden, self.heads, inner, activation, eps) for _ in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(hidden, eps=eps)

    def new_cache(self, hidden: Tensor) -> list[Tensor]:
        """Empty keys and values of one frame for ``hidden`` [B, hidden]; a frame starts from nothing."""
        count, width = hidden.shape
        shape = (2, count, self.heads, self.positions, width // self.heads)
        return [torch.empty(shape, dtype=hidden.dtype, device=hidden.device) for _ in self.h]

    def step(self, x: Tensor, position: int, cache: list[Tensor]) -> Tensor:
        """``x`` [B, hidden] at ``position`` -> normed state [B, hidden]. Positions must come in order from 0."""
        x = x + self.wpe.weight[position]
        for block, layer_cache in zip(self.h, cache, strict=True):
            x = block(x, position, layer_cache)
        return self.ln_f(x)
