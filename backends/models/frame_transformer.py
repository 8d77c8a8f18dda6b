"""The frame-local transformer: GPT-2 style blocks over the few positions inside one frame."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backends.errors import CheckpointError

_ACTIVATIONS = {"silu": F.silu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "gelu": F.gelu}


class Rope:
    """Rotary embedding (Su et al. 2021) on the pairs (0, 1), (2, 3) ... of a head, for the few positions of a frame."""

    def __init__(self, head_dim: int, positions: int, base: float) -> None:
        inverse = 1.0 / (base ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim))
        angles = torch.arange(positions, dtype=torch.float32, device="cpu")[:, None] * inverse
        self._cos, self._sin = (table.repeat_interleave(2, dim=-1) for table in (angles.cos(), angles.sin()))

    def turn(self, x: Tensor, position: int) -> Tensor:
        """``x`` [B, heads, dim] at ``position``."""
        if self._cos.device != x.device or self._cos.dtype != x.dtype:
            self._cos, self._sin = self._cos.to(x), self._sin.to(x)
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * self._cos[position] + turned * self._sin[position]


class _Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, rope: Rope | None) -> None:
        super().__init__()
        self.rope = rope
        self.heads, self.scale = heads, (hidden // heads) ** -0.5
        self.c_attn = nn.Linear(hidden, 3 * hidden)
        self.c_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, position: int, cache: Tensor) -> Tensor:
        """``x`` [B, hidden]; ``cache`` [2, B, heads, positions, dim], written at ``position`` in place."""
        count, hidden = x.shape
        q, k, v = self.c_attn(x).view(count, 3, self.heads, hidden // self.heads).unbind(1)
        if self.rope is not None:
            q, k = self.rope.turn(q, position), self.rope.turn(k, position)
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
    def __init__(self, hidden: int, heads: int, inner: int, activation: str, eps: float, rope: Rope | None) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden, eps=eps)
        self.attn = _Attention(hidden, heads, rope)
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
        rope = (
            None
            if self.wpe is not None
            else Rope(hidden // self.heads, positions, float(config.get("rope_base", 10_000.0)))
        )
        eps = config["layer_norm_epsilon"]
        self.h = nn.ModuleList(
            _Block(hidden, self.heads, inner, activation, eps, rope) for _ in range(config["n_layer"])
        )
        self.ln_f = nn.LayerNorm(hidden, eps=eps)

    def new_cache(self, hidden: Tensor) -> list[Tensor]:
        """Empty keys and values of one frame for ``hidden`` [B, hidden]; a frame starts from nothing."""
        count, width = hidden.shape
        shape = (2, count, self.heads, self.positions, width // self.heads)
        return [torch.empty(shape, dtype=hidden.dtype, device=hidden.device) for _ in self.h]

    def step(self, x: Tensor, position: int, cache: list[Tensor]) -> Tensor:
        """``x`` [B, hidden] at ``position`` -> normed state [B, hidden]. Positions must come in order from 0."""
        if self.wpe is not None:
            x = x + self.wpe.weight[position]
        for block, layer_cache in zip(self.h, cache, strict=True):
            x = block(x, position, layer_cache)
        return self.ln_f(x)
