"""The encoder of MOSS-Audio-Tokenizer as an ONNX graph: audio float32 [batch, samples] -> codes int32 [batch, frames,
codebooks].

The same network as ``MossAudioTokenizer.encode``, written for whole signals of any length: time is cut into blocks of
about a third of the attention window, and the queries of a block see the keys of their own and of the blocks before it
that the window reaches. So the work grows with the length and not with its square, and every shape but the number of
blocks is constant. The signal is padded with zeros to whole blocks; the network is causal, so the frames before the
padding do not see it.

Limits are in the graph: rotary angles are computed in float64 at export and stored for ``max_frames`` (TensorRT has no
float64, and float32 angles would lose bits with time).
"""

from __future__ import annotations

import math

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.encoder.graph import GraphWriter
from backends.models.causal_transformer import CausalTransformer, Layer, TransformerSpec
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.residual_quantizer import Pointwise, ResidualQuantizer

#: Parts of a window that a block is. More: fewer keys a query, but more pieces to put together.
_BLOCKS_A_WINDOW = 3
#: Added to the scores of keys out of sight. Finite, since infinities make NaN where a kernel subtracts them.
_OUT_OF_SIGHT = -1e9
_NORMALIZE_EPS = 1e-12  # of torch.nn.functional.normalize


def write_encoder(codec: MossAudioTokenizer, max_frames: int) -> onnx.ModelProto:
    """``codec`` on the CPU. The graph takes 1 ... ``max_frames`` whole frames (``samples`` is a multiple of ``hop``
    times ``channels``)."""
    return _EncoderWriter(codec, max_frames).write()


class _EncoderWriter:
    def __init__(self, codec: MossAudioTokenizer, max_frames: int) -> None:
        self.codec, self.graph = codec, GraphWriter()
        windows = [math.ceil(m.spec.window / m.spec.rate) for m in codec.encoder if not isinstance(m, int)]
        self.block = max(1, math.ceil(max(windows, default=1) / _BLOCKS_A_WINDOW))  # frames
        self.max_blocks = math.ceil(max_frames / self.block)
        self.blocks = ""
        self._turns: dict[tuple[int, float], tuple[str, str]] = {}

    def write(self) -> onnx.ModelProto:
        graph, codec = self.graph, self.codec
        frame = codec.frame_samples  # two channels are one stream of samples in turns
        span = self.block * frame
        length = graph.cut(graph.node("Shape", "audio"), 0, 1, 2)
        padded = graph.pad("audio", (0, 0), (0, span - frame))
        self.blocks = graph.node("Div", graph.node("Add", length, graph.whole(span - frame)), graph.whole(span))
        x = graph.cut(padded, 1, 0, graph.node("Mul", self.blocks, graph.whole(span)))
        x = graph.reshape(x, 0, -1, span, 1)  # [batch, blocks, steps of a block, channels] from here on
        steps, width = span, 1
        for module in codec.encoder:
            if isinstance(module, int):
                steps, width = steps // module, width * module
                x = self._gather(x, steps, module, width)
            else:
                x = self._transformer(x, module)
                width = module.spec.output_dim
        x = graph.reshape(x, 0, -1, width)
        x = graph.cut(x, 1, 0, graph.node("Div", length, graph.whole(frame)))
        self.graph.rename(self._quantizer(x, codec.quantizer), "codes")
        return graph.model(
            "audio_encoder", {"audio": ["batch", "samples"]}, {"codes": ["batch", "frames", codec.codebooks]}
        )

    def _gather(self, x: str, steps: int, patch: int, width: int) -> str:
        """``patch`` steps become one; channel ``i`` of step ``j`` becomes channel ``i * patch + j``."""
        graph = self.graph
        if width > patch:  # more channels than one: the patch is the last dimension after this
            x = graph.reshape(x, 0, 0, steps, patch, width // patch)
            x = graph.transpose(x, 0, 1, 2, 4, 3)
        return graph.reshape(x, 0, 0, steps, width)

    def _transformer(self, x: str, module: CausalTransformer) -> str:
        graph, spec = self.graph, module.spec
        if module.input is not None:
            x = graph.linear(x, _array(module.input))
        steps = self.block * spec.rate
        behind = math.ceil((spec.window - 1) / steps)  # blocks before its own that a query sees
        turn, sight = self._turn(module, steps), self._sight(spec.window, steps, behind)
        for layer in module.layers:
            normed = self._norm(x, layer.norm1, spec.norm_eps)
            x = graph.node("Add", x, self._attend(normed, layer, spec, behind, turn, sight))
            hidden = graph.linear(self._norm(x, layer.norm2, spec.norm_eps), _array(layer.up))
            x = graph.node("Add", x, graph.linear(self._gelu(hidden), _array(layer.down)))
        return x if module.output is None else graph.linear(x, _array(module.output))

    def _norm(self, x: str, weights: tuple[Tensor, Tensor], eps: float) -> str:
        scale, shift = (self.graph.constant(_array(weight)) for weight in weights)
        return self.graph.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=eps)

    def _gelu(self, x: str) -> str:
        graph = self.graph
        erf = graph.node("Erf", graph.node("Div", x, graph.constant(math.sqrt(2.0))))
        return graph.node("Mul", graph.node("Mul", x, graph.node("Add", erf, graph.constant(1.0))), graph.constant(0.5))

    def _attend(
        self, x: str, layer: Layer, spec: TransformerSpec, behind: int, turn: tuple[str, str], sight: str
    ) -> str:
        """[batch, blocks, steps, width] -> the same: attention inside the window, and its output projection."""
        graph, (cos, sin) = self.graph, turn
        heads, dim, steps = spec.heads, spec.head_dim, self.block * spec.rate
        qkv = _array(layer.qkv).copy()
        qkv[:, : heads * dim] *= dim**-0.5  # for heads of 64 a power of two: exact
        whole = graph.reshape(graph.linear(x, qkv), 0, 0, steps, 3 * heads, dim)
        queries_keys, values = graph.split(whole, 3, (2 * heads, heads))
        first, second = graph.split(queries_keys, 4, (dim // 2, dim // 2))
        turned_first = graph.node("Sub", graph.node("Mul", first, cos), graph.node("Mul", second, sin))
        turned_second = graph.node("Add", graph.node("Mul", second, cos), graph.node("Mul", first, sin))
        turned = graph.node("Concat", turned_first, turned_second, axis=4)
        queries, keys = graph.split(turned, 3, (heads, heads))
        both = graph.node("Concat", keys, values, axis=3)
        both = graph.pad(both, (0, behind, 0, 0, 0), (0, 0, 0, 0, 0))
        ends = [i - behind if i < behind else np.iinfo(np.int64).max for i in range(behind + 1)]
        pieces = [graph.cut(both, 1, i, int(end)) for i, end in enumerate(ends)]
        seen = graph.node("Concat", *pieces, axis=2) if behind else both
        keys, values = graph.split(seen, 3, (heads, heads))
        scores = graph.node("MatMul", graph.transpose(queries, 0, 1, 3, 2, 4), graph.transpose(keys, 0, 1, 3, 4, 2))
        shares = graph.node("Softmax", graph.node("Add", scores, sight), axis=-1)
        mixed = graph.node("MatMul", shares, graph.transpose(values, 0, 1, 3, 2, 4))
        mixed = graph.reshape(graph.transpose(mixed, 0, 1, 3, 2, 4), 0, 0, steps, heads * dim)
        return graph.linear(mixed, _array(layer.out))

    def _turn(self, module: CausalTransformer, steps: int) -> tuple[str, str]:
        """Cosines and sines [blocks, steps, 1, head_dim / 2] of the positions at hand."""
        key = (steps, module.spec.max_period)
        if key not in self._turns:
            graph = self.graph
            positions = torch.arange(self.max_blocks * steps, dtype=torch.float64)
            angles = positions[:, None] * module.frequencies.cpu()
            tables = [
                _array(wave.float()).reshape(-1, steps, 1, module.spec.head_dim // 2)
                for wave in (angles.cos(), angles.sin())
            ]
            cos, sin = (graph.cut(graph.constant(table), 0, 0, self.blocks) for table in tables)
            self._turns[key] = cos, sin
        return self._turns[key]

    def _sight(self, window: int, steps: int, behind: int) -> str:
        """What is added to the scores [blocks, 1, steps, keys]: keys outside the window or before the start."""
        keys = (behind + 1) * steps
        distance = np.arange(steps)[:, None] + behind * steps - np.arange(keys)
        inside = np.where((distance >= 0) & (distance < window), 0.0, _OUT_OF_SIGHT)
        position = (np.arange(self.max_blocks)[:, None] - behind) * steps + np.arange(keys)
        begun = np.where(position >= 0, 0.0, _OUT_OF_SIGHT).reshape(self.max_blocks, 1, 1, keys)
        graph = self.graph
        return graph.node("Add", graph.cut(graph.constant(begun), 0, 0, self.blocks), graph.constant(inside))

    def _quantizer(self, x: str, quantizer: ResidualQuantizer) -> str:
        """[batch, frames, width] -> int32 [batch, frames, codebooks]; see ResidualQuantizer.encode."""
        graph, two, codes = self.graph, self.graph.constant(2.0), []
        residual = self._pointwise(x, quantizer.input)
        stages = list(zip(quantizer.ins, quantizer.outs, quantizer.codebooks, strict=True))
        for i, (inward, outward, book) in enumerate(stages):
            entries = torch.nn.functional.normalize(book)
            wanted = self._pointwise(residual, inward)
            length = graph.node("ReduceL2", wanted, axes=[-1], keepdims=1)
            wanted = graph.node("Div", wanted, graph.node("Max", length, graph.constant(_NORMALIZE_EPS)))
            square = graph.node("ReduceSum", graph.node("Mul", wanted, wanted), graph.whole(-1), keepdims=1)
            near = graph.node("MatMul", graph.node("Mul", wanted, two), graph.constant(_array(entries.t())))
            distance = graph.node("Sub", square, near)
            distance = graph.node("Add", distance, graph.constant(_array(entries.pow(2).sum(1))))
            code = graph.node("ArgMin", distance, axis=-1, keepdims=1)
            codes.append(code)
            if i + 1 < len(stages):
                flat = graph.reshape(code, 0, 0)
                found = graph.node("Gather", graph.constant(_array(book)), flat, axis=0)
                residual = graph.node("Sub", residual, self._pointwise(found, outward))
        return graph.node("Cast", graph.node("Concat", *codes, axis=-1), to=onnx.TensorProto.INT32)

    def _pointwise(self, x: str, convolution: Pointwise) -> str:
        if convolution.weight is None:
            return x
        bias = None if convolution.bias is None else _array(convolution.bias)
        return self.graph.linear(x, _array(convolution.weight.t()), bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=np.float32)
