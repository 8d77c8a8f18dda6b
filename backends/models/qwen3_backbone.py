"""The layers of Qwen3, as the decoder engine runs them: what several speech models have for a backbone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from backends.kernels import add_rms_norm
from backends.models.linear import linear_silu_mul
from backends.models.named_linears import frozen_linear
from backends.models.protocol import Attention, Heads


class _Layer(nn.Module):
    """One Qwen3 layer with q/k/v and gate/up fused: four products instead of seven."""

    def __init__(self, source: Any, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        attn, mlp = source.self_attn, source.mlp
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.qkv = _fuse([attn.q_proj, attn.k_proj, attn.v_proj])
        self.gate_up = _fuse([mlp.gate_proj, mlp.up_proj])
        self.out, self.down = attn.o_proj, mlp.down_proj
        self.q_norm, self.k_norm = attn.q_norm.weight, attn.k_norm.weight
        self.norm1, self.norm2 = source.input_layernorm.weight, source.post_attention_layernorm.weight
        self.eps = source.input_layernorm.variance_epsilon

    def forward(
        self, x: Tensor, residual: Tensor | None, layer: int, attend: Attention, tables: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """``x`` [N, hidden] and the residual it is still to be added to -> the same of the next layer."""
        cos, sin, positions = tables
        normed, residual = add_rms_norm(x, residual, self.norm1, self.eps)
        heads = Heads(self.heads, self.kv_heads, self.head_dim, positions, self.q_norm, self.k_norm, self.eps, cos, sin)
        x = self.out(attend(layer, self.qkv(normed), heads))
        normed, residual = add_rms_norm(x, residual, self.norm2, self.eps)
        return self.down(linear_silu_mul(self.gate_up, normed)), residual


class Qwen3Backbone(nn.Module):
    """Layers and final norm, made from a loaded ``Qwen3Model`` of transformers, whose weights it takes over."""

    def __init__(self, config: dict[str, Any], source: Any) -> None:
        """``config``: Qwen3's part of ``config.json``."""
        super().__init__()
        heads, kv_heads, head_dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        weight = source.norm.weight.detach()
        self.layers = nn.ModuleList(_Layer(layer, heads, kv_heads, head_dim) for layer in source.layers)
        self.final_norm, self.eps = weight, source.norm.variance_epsilon
        positions = config["max_position_embeddings"]
        self.cos, self.sin = _rope_tables(config, head_dim, positions, weight.device, weight.dtype)

    def forward(self, x: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """``x`` [N, hidden], ``positions`` int64 [N] -> normed hidden states [N, hidden]."""
        tables, residual = (self.cos, self.sin, positions), None
        for index, layer in enumerate(self.layers):
            x, residual = layer(x, residual, index, attend, tables)
        return add_rms_norm(x, residual, self.final_norm, self.eps)[0]


def _fuse(linears: list[nn.Linear]) -> nn.Linear:
    """Stack the outputs of linears that read the same input."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    return frozen_linear(weight)


def _rope_tables(
    qwen3: dict[str, Any], head_dim: int, positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, head_dim] of RoPE (Su et al. 2021): angle = position x theta^(-2i/dim)."""
    theta = float(qwen3.get("rope_parameters", {}).get("rope_theta", qwen3.get("rope_theta", 1e6)))
    inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
