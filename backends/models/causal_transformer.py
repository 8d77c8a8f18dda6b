"""The windowed causal transformer of MOSS-Audio-Tokenizer, written for streams: one function for chunks and for whole
decodes. Mimi's is the same but for names, sizes and the layout of RoPE (backends/models/mimi_transformer.py).

Per layer (public architecture; ``norm`` is LayerNorm, eps 1e-5 in MOSS, linears have no bias): ``x += scale1 *
out_proj(attention(norm1(x)))``, ``x += scale2 * linear2(gelu(linear1(norm2(x))))``, exact GELU, heads of 64, RoPE on
the pairs (0,1), (2,3), ... with frequencies ``max_period ** (-2 i / 64)``, key allowed iff ``0 <= query position -
key position < window``. The layer scales are folded into the matrices in front of them.

A chunk is T codec frames; a stage has ``rate`` steps a frame. The same bits for every chunking come from this
discipline:

* **Attention is computed frame by frame, by construction.** A frame's ``rate`` queries see one block of a constant
  number of keys that ends with the frame: the stored history and the keys of this chunk lie in one buffer in time
  order, and the blocks are overlapping strided views of it, so that one ``scaled_dot_product_attention`` call serves
  all frames of all streams without a copy. Every (frame, head) is the same problem: same shape, same strides, keys in
  the same places. Queries are padded to a multiple of 8 rows and keys to a multiple of 16, so that the kernel's
  scratch memory is 64-byte aligned for every thread: without that, results with 2 threads depended on which thread
  did the work (measured).
* **History holds at least window - 1 keys**, whatever the chunk's length, so history + chunk always covers what its
  first query needs (the public code's ring of one window does not; see the voice's README).
* **Linears run on rows padded to a multiple of 8.** By measurement, not by construction: MKL's float32 results of a
  row depend on the row count at 1, 2, 3, 5, 6, 7, 9, ... rows but were the same at all multiples of 4 (AMD EPYC with
  AVX-512, torch 2.13, 1 and 2 threads). Where they are not, another library's product is taken
  (backends/models/row_product.py). ``StreamingVocoder.measure_exactness`` looks at the machine at hand.
* **LayerNorm is row-wise; RoPE is single exactly rounded operations**, so neither sees how the work is split. GELU is
  elementwise; its scalar tail could differ from its vectors in the last bit, and widths here leave no tail for thread
  counts that are powers of two (none was seen with 3 threads either).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.models.named_tensors import NamedTensors
from backends.models.row_product import RowProduct

HEAD_DIM = 64
NORM_EPS = 1e-5
ROW_MULTIPLE = 8
QUERY_MULTIPLE = 8
KEY_MULTIPLE = 16


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def pad_rows(x: Tensor) -> Tensor:
    """[B, L, C] -> [R, C]: its B * L rows, then zeros up to a multiple of ``ROW_MULTIPLE`` rows."""
    rows = x.shape[0] * x.shape[1]
    flat = x.new_zeros(round_up(rows, ROW_MULTIPLE), x.shape[2])
    flat[:rows] = x.reshape(rows, -1)
    return flat


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    """Sizes of one stage. ``rate`` in steps a codec frame, ``window`` in steps; ``heads * head_dim`` need not be
    ``width``."""

    input_dim: int
    output_dim: int
    width: int
    heads: int
    layers: int
    feedforward: int
    layer_scale: bool
    max_period: float
    rate: int
    window: int
    head_dim: int = HEAD_DIM
    norm_eps: float = NORM_EPS


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer. Matrices are [inputs, outputs]; ``qkv`` has all heads of q, then of k, then of v, and the
    first members of the RoPE pairs of a head of q and k before the second ones."""

    norm1: tuple[Tensor, Tensor]
    norm2: tuple[Tensor, Tensor]
    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor


def read_matrix(tensors: NamedTensors, name: str, inputs: int, outputs: int, scale: Tensor | None = None) -> Tensor:
    """A published [outputs, inputs] weight, its outputs scaled, as a contiguous [inputs, outputs] matrix."""
    weight = tensors.take(f"{name}.weight", outputs, inputs)
    return (weight if scale is None else weight * scale[:, None]).t().contiguous()


class CausalTransformer:
    """One stage: optional input projection, the layers, optional output projection. Weights are plain tensors.

    They are readable (``input``, ``layers``, ``output``, ``frequencies``), for the same network in another form.
    """

    def __init__(self, spec: TransformerSpec, tensors: NamedTensors, prefix: str) -> None:
        self.spec = spec
        self.block_queries = round_up(spec.rate, QUERY_MULTIPLE)
        self.block_keys = round_up(spec.window + spec.rate - 1, KEY_MULTIPLE)
        self.history_steps = self.block_keys - spec.rate
        width = spec.width
        self.input = None
        if spec.input_dim != width:
            self.input = read_matrix(tensors, f"{prefix}.input_proj", spec.input_dim, width)
        self.output = None
        if spec.output_dim != width:
            self.output = read_matrix(tensors, f"{prefix}.output_proj", width, spec.output_dim)
        self.layers = [self.read_layer(tensors, prefix, i) for i in range(spec.layers)]
        self._products = [tuple(map(RowProduct, (each.qkv, each.out, each.up, each.down))) for each in self.layers]
        self._into = None if self.input is None else RowProduct(self.input)
        self._out_of = None if self.output is None else RowProduct(self.output)
        device = tensors.device
        # Frequencies in float32 as published; angles in float64, so that their error does not grow over a long stream.
        self.frequencies = self.rope_frequencies().to(torch.float64).to(device)
        self._key_index = torch.arange(self.block_keys, device=device)
        query = torch.arange(self.block_queries, device=device).clamp(max=spec.rate - 1)
        distance = query[:, None] + self.history_steps - self._key_index[None]
        self._in_window = (distance >= 0) & (distance < spec.window)
        self._shut_out = torch.tensor(float("-inf"), device=device)
        self._let_in = torch.zeros((), device=device)

    def rope_frequencies(self) -> Tensor:
        """Radians a step of each pair, float32 [head_dim / 2], by the operations of the public code."""
        half = torch.arange(self.spec.head_dim // 2, dtype=torch.float32)
        return torch.exp(half * (-math.log(self.spec.max_period) * 2 / self.spec.head_dim))

    def read_layer(self, tensors: NamedTensors, prefix: str, index: int) -> Layer:
        """Take the weights of one layer by their published names."""
        name = f"{prefix}.transformer.layers.{index}"
        width, hidden = self.spec.width, self.spec.feedforward
        scale1 = tensors.take(f"{name}.layer_scale_1.scale", width) if self.spec.layer_scale else None
        scale2 = tensors.take(f"{name}.layer_scale_2.scale", width) if self.spec.layer_scale else None
        norms = [
            (tensors.take(f"{name}.{n}.weight", width), tensors.take(f"{name}.{n}.bias", width))
            for n in ("norm1", "norm2")
        ]
        return Layer(
            norm1=norms[0],
            norm2=norms[1],
            qkv=_halves(read_matrix(tensors, f"{name}.self_attn.in_projs.0", width, 3 * width), self.spec.heads),
            out=read_matrix(tensors, f"{name}.self_attn.out_projs.0", width, width, scale1),
            up=read_matrix(tensors, f"{name}.linear1", width, hidden),
            down=read_matrix(tensors, f"{name}.linear2", hidden, width, scale2),
        )

    def new_history(self, slots: int) -> Tensor:
        """Zeros [layers, 2 (keys, values), slots, heads, history_steps, head_dim]: rotated keys and values in time
        order."""
        shape = (self.spec.layers, 2, slots, self.spec.heads, self.history_steps, self.spec.head_dim)
        return torch.zeros(shape, device=self.frequencies.device)

    def forward(self, x: Tensor, frames: Tensor, slots: Tensor, history: Tensor) -> Tensor:
        """Run T frames of B streams and move their history on, in place.

        ``x`` float32 [B, T * rate, input_dim]; ``frames`` int64 [B], the frames each stream has behind it; ``slots``
        int64 [B], all different, the streams' places in ``history`` (see :meth:`new_history`). Returns float32 [B, T
        * rate, output_dim]. What lies in the history of a stream with 0 frames is never seen. No host
        synchronisation, no shape from data.
        """
        batch, steps, _ = x.shape
        rows = batch * steps
        flat = pad_rows(x)
        if self._into is not None:
            flat = self._into.mm(flat)
        turn, mask = self._turn(frames, steps), self._mask(frames, steps // self.spec.rate)
        for layer, (qkv, out, up, down), past in zip(self.layers, self._products, history, strict=True):
            heads = qkv.mm(F.layer_norm(flat, (self.spec.width,), *layer.norm1, self.spec.norm_eps))
            flat = out.add_to(flat, self._attend(heads, turn, mask, slots, past))
            hidden = up.mm(F.layer_norm(flat, (self.spec.width,), *layer.norm2, self.spec.norm_eps))
            flat = down.add_to(flat, F.gelu(hidden))
        if self._out_of is not None:
            flat = self._out_of.mm(flat)
        return flat[:rows].view(batch, steps, -1)

    def _turn(self, frames: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """RoPE as two factors [B, steps, 1, 1, head_dim]: cosines, and sines with the sign of what they multiply."""
        positions = frames[:, None] * self.spec.rate + torch.arange(steps, device=frames.device)
        angles = positions[:, :, None, None, None].to(torch.float64) * self.frequencies
        cos, sin = angles.cos().float(), angles.sin().float()
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def _mask(self, frames: Tensor, chunk: int) -> Tensor:
        """Additive float mask [T, B * heads or heads, block_queries, block_keys]: inside the window and not before
        the start."""
        behind = frames[None, :] + torch.arange(chunk, device=frames.device)[:, None]
        first = self.history_steps - behind * self.spec.rate
        seen = self._in_window & (self._key_index >= first[:, :, None, None])
        mask = torch.where(seen, self._let_in, self._shut_out)[:, :, None]
        mask = mask.expand(-1, -1, self.spec.heads, -1, -1)
        return mask.reshape(chunk, -1, self.block_queries, self.block_keys)

    def _attend(self, qkv: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, slots: Tensor, past: Tensor) -> Tensor:
        """``qkv`` [padded rows, 3 * heads * head_dim] -> mixed values [padded rows, heads * head_dim]; ``past`` [2,
        slots, heads, history, head_dim] moves on."""
        rate, heads, dim, kept = self.spec.rate, self.spec.heads, self.spec.head_dim, self.history_steps
        cos, sin = turn
        batch, steps = cos.shape[:2]
        rows, chunk = batch * steps, steps // rate
        qk, v = torch.split(qkv[:rows].view(batch, steps, 3, heads, dim), [2, 1], dim=2)
        # Single multiplications and additions, each exactly rounded: a fused complex product has other bits in its
        # scalar tail than in its vectors (seen with 3 threads).
        crossed = torch.cat([qk[..., dim // 2 :], qk[..., : dim // 2]], -1).mul_(sin)
        q, k = torch.mul(qk, cos).add_(crossed).unbind(2)

        timeline = qkv.new_empty(2, batch, heads, kept + steps, dim)
        timeline[:, :, :, :kept] = past.index_select(1, slots)
        timeline[0, :, :, kept:] = k.transpose(1, 2)
        timeline[1, :, :, kept:] = v[:, :, 0].transpose(1, 2)
        past.index_copy_(1, slots, timeline[:, :, :, steps:])

        queries = qkv.new_zeros(chunk, batch, heads, self.block_queries, dim)
        queries[:, :, :, :rate] = q.view(batch, chunk, rate, heads, dim).permute(1, 0, 3, 2, 4)

        blocks = (chunk, batch * heads, self.block_keys, dim)
        strides = (rate * dim, (kept + steps) * dim, dim, 1)
        mixed = F.scaled_dot_product_attention(
            queries.view(chunk, batch * heads, self.block_queries, dim),
            timeline[0].as_strided(blocks, strides),
            timeline[1].as_strided(blocks, strides),
            attn_mask=mask,
        )
        flat = qkv.new_zeros(qkv.shape[0], heads * dim)
        mixed = mixed.view(chunk, batch, heads, self.block_queries, dim)[:, :, :, :rate]
        flat[:rows].view(batch, chunk, rate, heads, dim).copy_(mixed.permute(1, 0, 3, 2, 4))
        return flat


def _halves(qkv: Tensor, heads: int) -> Tensor:
    """Reorder the outputs of q and k in each head from pairs (0,1), (2,3), ... to first members, then second members.

    Scores do not change (a dot product takes both in the same order), and RoPE becomes whole halves.
    """
    inputs = qkv.shape[0]
    parts = qkv.view(inputs, 3, heads, HEAD_DIM // 2, 2)
    qk = parts[:, :2].transpose(3, 4).reshape(inputs, -1)
    return torch.cat([qk, parts[:, 2].reshape(inputs, -1)], dim=1)
