"""Causal convolutions for streams, plain and transposed: one matrix product over rows of steps, and a left context.

A transposed convolution of stride s whose surplus is trimmed on the right, as Mimi's are, gives at step ``t * s + j``
the sum over i of ``x[t - i] @ weight[i * s + j]`` (public definition of the operation): a causal convolution of
``kernel / s`` taps with s times the outputs. So both kinds are one thing here. The state is the last inputs, not an
overlap-add tail of outputs; at the start of a stream either is zeros.

Steps are rows [R, channels] in the order (stream, step), padded at the end to a multiple of 8 rows (``pad_rows`` of
backends/models/causal_transformer.py). The same bits for every chunking come from that, by measurement and not by
construction: MKL's float32 results of a row did not depend on the row count at multiples of 8 (AMD EPYC with AVX-512,
torch 2.13, 1 and 2 threads; all matrices of Mimi's default sizes and of small ones; up to 9,600 rows, up to 96,000
where a matrix has at most 100,000 entries), and where they do another library's are taken
(backends/models/row_product.py), while the library's convolutions depend on the length. On a GPU products stay in
float32, where its convolutions use TF32 unless told otherwise.
"""

from __future__ import annotations

from torch import Tensor

from backends.models.named_tensors import NamedTensors
from backends.models.row_product import RowProduct


class CausalConv:
    """``weight`` [outputs * spread, inputs, taps], the last tap on the step itself, ``bias`` [outputs * spread].

    Each step gives ``spread`` steps of ``outputs`` channels. ``dilation`` in steps.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int = 1, spread: int = 1) -> None:
        outputs, self.inputs, self.taps = weight.shape
        self.outputs, self.spread, self.dilation = outputs // spread, spread, dilation
        self.context_steps = (self.taps - 1) * dilation
        self._matrix = weight.permute(2, 1, 0).reshape(-1, outputs).contiguous()
        self._bias, self._product = bias, RowProduct(self._matrix)

    @classmethod
    def read(
        cls, tensors: NamedTensors, name: str, inputs: int, outputs: int, kernel: int, dilation: int = 1
    ) -> CausalConv:
        """Take a convolution: ``name.weight`` [outputs, inputs, kernel] and ``name.bias``."""
        weight = tensors.take(f"{name}.weight", outputs, inputs, kernel)
        return cls(weight, tensors.take(f"{name}.bias", outputs), dilation)

    @classmethod
    def read_transposed(
        cls,
        tensors: NamedTensors,
        name: str,
        inputs: int,
        outputs: int,
        stride: int,
        groups: int = 1,
        bias: bool = True,
    ) -> CausalConv:
        """Take a transposed convolution: ``name.weight`` [inputs, outputs / groups, 2 * stride] and ``name.bias``.

        Groups become blocks of a matrix that is zero elsewhere. That is more work than a depthwise product, at the
        lowest rate of the codec, where a matrix of this size is one among many.
        """
        weight = tensors.take(f"{name}.weight", inputs, outputs // groups, 2 * stride)
        full = weight.new_zeros(inputs, outputs, 2 * stride)
        for group, block in enumerate(weight.chunk(groups)):
            height, width = block.shape[:2]
            full[group * height : (group + 1) * height, group * width : (group + 1) * width] = block
        taps = full.view(inputs, outputs, 2, stride).flip(2)  # the oldest input first
        offset = tensors.take(f"{name}.bias", outputs) if bias else weight.new_zeros(outputs)
        return cls(taps.permute(3, 1, 0, 2).reshape(stride * outputs, inputs, 2), offset.repeat(stride), spread=stride)

    def new_context(self, slots: int) -> Tensor:
        """Zeros [slots, context_steps, inputs]: the last inputs of each stream in time order."""
        return self._matrix.new_zeros(slots, self.context_steps, self.inputs)

    def forward(self, rows: Tensor, steps: int, slots: Tensor, fresh: Tensor, context: Tensor) -> Tensor:
        """Convolve the next ``steps`` steps of B streams and move their context on, in place.

        ``rows`` [R, inputs], R >= B * steps a multiple of 8; ``slots`` int64 [B], all different, the streams' places
        in ``context`` (see :meth:`new_context`); ``fresh`` bool [B]: the stream starts here, whatever its context
        holds. Returns [R * spread, outputs]; what stands behind the first B * steps * spread rows means nothing. No
        host synchronisation, no shape from data.
        """
        if self.context_steps:
            rows = self._windows(rows, steps, slots, fresh, context)
        return self._product.mm(rows, self._bias).view(-1, self.outputs)

    def _windows(self, rows: Tensor, steps: int, slots: Tensor, fresh: Tensor, context: Tensor) -> Tensor:
        """[R, taps * inputs]: what each step sees, the oldest tap first."""
        batch, kept, width = slots.shape[0], self.context_steps, self.inputs
        count, length = batch * steps, kept + steps
        timeline = rows.new_empty(batch, length, width)
        timeline[:, :kept] = context.index_select(0, slots).masked_fill_(fresh[:, None, None], 0.0)
        timeline[:, kept:] = rows[:count].view(batch, steps, width)
        context.index_copy_(0, slots, timeline[:, steps:])
        windows = rows.new_empty(rows.shape[0], self.taps, width)
        windows[count:] = 0.0
        windows[:count].view(batch, steps, self.taps, width).copy_(
            timeline.as_strided((batch, steps, self.taps, width), (length * width, width, self.dilation * width, 1))
        )
        return windows.view(rows.shape[0], -1)
