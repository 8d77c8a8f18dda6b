"""The decoder of Whisper: attention over its own text and over the states of one clip, one token a step.

Weights load under their published names (``model.decoder.*``); the encoder's half is
:mod:`backends.models.whisper_encoder`. Positions are learned vectors, the head is the embedding.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backends.checkpoint_files import read_tensors
from backends.kernels import add_layer_norm
from backends.models.linear import linear_activation, pack_linears, stream_linears
from backends.models.named_linears import NamedLinears, frozen_linear
from backends.models.named_tensors import NamedTensors, RandomTensors
from backends.models.protocol import Attention, AudioSpec, CodeSampler, CrossAttention, CrossSpec, Heads, KVSpec
from backends.models.text_rows import greedy_defaults, text_row_spec
from backends.models.whisper_config import SAMPLING_RATE, WhisperConfig

_EPS = 1e-5  # of every norm; not in the configuration
_TILE = 16


class _Layer(nn.Module):
    """Pre-norm decoder layer; its norms are computed with the sums in front of them."""

    def __init__(self, config: WhisperConfig, tensors: NamedTensors, index: int) -> None:
        super().__init__()
        take = NamedLinears(tensors, f"model.decoder.layers.{index}", config.width)
        self.heads, self.head_dim = config.decoder_heads, config.width // config.decoder_heads
        self.norm1, self.norm2 = take.norm("self_attn_layer_norm"), take.norm("encoder_attn_layer_norm")
        self.norm3 = take.norm("final_layer_norm")
        self.qkv, self.out = take.fused("self_attn"), take.one("self_attn.out_proj")
        self.cross_q, self.cross_out = take.one("encoder_attn.q_proj"), take.one("encoder_attn.out_proj")
        self.cross_k, self.cross_v = take.one("encoder_attn.k_proj", bias=False), take.one("encoder_attn.v_proj")
        self.fc1 = take.one("fc1", out=config.decoder_ffn)
        self.fc2 = take.one("fc2", into=config.decoder_ffn)

    def forward(
        self, x: Tensor, residual: Tensor | None, layer: int, attend: CrossAttention, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``x`` [N, width] and the residual it is still to be added to -> the same of the next layer."""
        normed, residual = add_layer_norm(x, residual, *self.norm1, _EPS)
        heads = Heads(self.heads, self.heads, self.head_dim, positions)
        x = self.out(attend(layer, self.qkv(normed), heads))
        normed, residual = add_layer_norm(x, residual, *self.norm2, _EPS)
        q = self.cross_q(normed).view(-1, self.heads, self.head_dim)
        x = self.cross_out(attend.cross(layer, q))
        normed, residual = add_layer_norm(x, residual, *self.norm3, _EPS)
        return self.fc2(linear_activation(self.fc1, normed, "gelu")), residual


class Whisper(nn.Module):
    """The decoder as the engine runs it (:class:`backends.models.protocol.EncoderDecoderModel`)."""

    def __init__(self, config: WhisperConfig, tensors: NamedTensors, stream_weights: bool = True) -> None:
        """Takes the decoder's tensors. ``stream_weights``: products of few rows on the weight-streaming kernel, where
        the GPU has what it needs.
        """
        super().__init__()
        self.config, self.device = config, tensors.device
        width, heads = config.width, config.decoder_heads
        head_dim = width // heads
        self.rows = text_row_spec(config.vocabulary)
        self.kv = KVSpec(config.decoder_layers, heads, head_dim, tensors.dtype)
        states = CrossSpec(config.decoder_layers, heads, head_dim, config.encoder.positions, tensors.dtype)
        self.audio = AudioSpec(width, states)
        self.defaults, self.sampling_rate = greedy_defaults(config.target_positions), SAMPLING_RATE
        self.max_positions = config.target_positions
        table = tensors.take("model.decoder.embed_tokens.weight", config.vocabulary, width)
        self.places = tensors.take("model.decoder.embed_positions.weight", config.target_positions, width)
        self.layers = nn.ModuleList(_Layer(config, tensors, index) for index in range(config.decoder_layers))
        self.norm = NamedLinears(tensors, "model.decoder", width).norm("layer_norm")
        # Zero rows up to a multiple of 16, what the weight-streaming kernel takes: no published vocabulary is one.
        self.table = F.pad(table, (0, 0, 0, -config.vocabulary % _TILE))
        banned = torch.zeros(len(self.table), dtype=tensors.dtype)
        banned[config.vocabulary :] = -torch.inf
        banned[list(config.suppressed)] = -torch.inf
        self.head = frozen_linear(self.table, banned.to(self.device))
        self.not_first = torch.tensor(config.first_suppressed, dtype=torch.int64, device=self.device)
        self.ends = torch.tensor(config.ends, device=self.device)
        pack_linears(self)
        if stream_weights:
            stream_linears(self)

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype, stream_weights: bool = True) -> Whisper:
        """The decoder of ``folder`` on ``device``. Raises CheckpointError when it does not fit this architecture."""
        config = WhisperConfig.load(folder)
        tensors = NamedTensors(read_tensors(folder, ("model.decoder.",)), str(folder), device, dtype)
        model = cls(config, tensors, stream_weights)
        tensors.finish()
        return model.eval()

    @classmethod
    def dummy(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, stream_weights: bool = True, seed: int = 0
    ) -> Whisper:
        """The decoder that ``config.json`` of ``folder`` describes, with seeded random weights: for benchmarks."""
        return cls(WhisperConfig.load(folder), RandomTensors(seed, device, dtype), stream_weights).eval()

    def embed(self, rows: Tensor) -> Tensor:
        """Rows int64 [N, 2] -> embeddings of their tokens [N, width]; places are added by :meth:`backbone`."""
        return F.embedding(rows[:, 1], self.table)

    def backbone(self, x: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """``x`` [N, width], ``positions`` int64 [N] -> normed hidden states [N, width]."""
        # Padding rows of a piece may stand past the last place.
        x = x + self.places[positions.clamp(max=self.max_positions - 1)]
        over_both, residual = cast(CrossAttention, attend), None
        for index, layer in enumerate(self.layers):
            x, residual = layer(x, residual, index, over_both, positions)
        return add_layer_norm(x, residual, *self.norm, _EPS)[0]

    def cross_kv(self, layer: int, states: Tensor) -> tuple[Tensor, Tensor]:
        """``states`` [positions, width] -> keys and values of one layer, [positions, heads, head dim] each."""
        source = cast(_Layer, self.layers[layer])
        shape = (len(states), source.heads, source.head_dim)
        return source.cross_k(states).view(shape), source.cross_v(states).view(shape)

    def frame(self, hidden: Tensor, sampler: CodeSampler) -> tuple[Tensor, Tensor]:
        """``hidden`` [B, width] -> tokens int64 [B, 1], stop bool [B]: whether the token is one that ends a text."""
        logits = self.head(hidden)
        first = (sampler.steps if sampler.steps is not None else logits.new_zeros(len(logits))) == 0
        ban = torch.zeros_like(logits[:, :1]).masked_fill(first[:, None], -torch.inf)
        logits.index_add_(1, self.not_first, ban.expand(-1, len(self.not_first)))
        tokens = sampler.code(logits, 0).unsqueeze(1)
        return tokens, (tokens == self.ends).any(dim=1)
