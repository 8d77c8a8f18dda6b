"""Mimi's decoder transformer: the streaming transformer of backends/models/causal_transformer.py under other names.

Public architecture, where it differs: RoPE on the pairs (0, d/2), (1, d/2 + 1), ..., the layout that the streaming
transformer has inside; any even head size; ``norm_eps`` from the config; separate q, k and v; optionally fewer heads
of k and v than of q, each serving a run of neighbours (they are stored once a q head here).
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends.models.causal_transformer import CausalTransformer, Layer, TransformerSpec, read_matrix
from backends.models.named_tensors import NamedTensors


class MimiTransformer(CausalTransformer):
    """Weights are taken as ``prefix.layers.N``."""

    def __init__(self, spec: TransformerSpec, key_heads: int, tensors: NamedTensors, prefix: str) -> None:
        self._key_heads = key_heads
        super().__init__(spec, tensors, prefix)

    def rope_frequencies(self) -> Tensor:
        """Radians a step of each pair, float32 [head_dim / 2], by the operations of the public code."""
        size = self.spec.head_dim
        frequencies: Tensor = 1.0 / self.spec.max_period ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
        return frequencies

    def read_layer(self, tensors: NamedTensors, prefix: str, index: int) -> Layer:
        """Take the weights of one layer by their published names."""
        spec, name = self.spec, f"{prefix}.layers.{index}"
        inner = spec.heads * spec.head_dim
        norms = [
            (tensors.take(f"{name}.{norm}.weight", spec.width), tensors.take(f"{name}.{norm}.bias", spec.width))
            for norm in ("input_layernorm", "post_attention_layernorm")
        ]
        query = read_matrix(tensors, f"{name}.self_attn.q_proj", spec.width, inner)
        key, value = (self._read_shared(tensors, f"{name}.self_attn.{part}_proj") for part in ("k", "v"))
        attention_scale = tensors.take(f"{name}.self_attn_layer_scale.scale", spec.width)
        mlp_scale = tensors.take(f"{name}.mlp_layer_scale.scale", spec.width)
        return Layer(
            norm1=norms[0],
            norm2=norms[1],
            qkv=torch.cat([query, key, value], 1),
            out=read_matrix(tensors, f"{name}.self_attn.o_proj", inner, spec.width, attention_scale),
            up=read_matrix(tensors, f"{name}.mlp.fc1", spec.width, spec.feedforward),
            down=read_matrix(tensors, f"{name}.mlp.fc2", spec.feedforward, spec.width, mlp_scale),
        )

    def _read_shared(self, tensors: NamedTensors, name: str) -> Tensor:
        """The matrix of k or v [width, heads * head_dim], a shared head repeated for each of its q heads."""
        spec = self.spec
        matrix = read_matrix(tensors, name, spec.width, self._key_heads * spec.head_dim)
        heads = matrix.view(spec.width, self._key_heads, spec.head_dim)
        return heads.repeat_interleave(spec.heads // self._key_heads, 1).reshape(spec.width, -1)
