"""Writing an ONNX graph node by node.

torch's exporters are not used: the current one needs onnxscript, the older one is marked for removal, and both leave
chains of shape arithmetic where a ``Reshape`` with 0 (keep) and -1 (infer) says the same. A graph without them is one
that TensorRT takes as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

#: Pinned: the first opset with LayerNormalization; TensorRT 8.6 and later and every ONNX Runtime of today read it.
OPSET = 17
IR_VERSION = 8


class GraphWriter:
    """Names are values: every method returns the name of what it made. Equal constants are stored once."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._initializers: list[onnx.TensorProto] = []

    def constant(self, value: ArrayLike, dtype: type = np.float32) -> str:
        """A stored tensor: float32 unless ``dtype`` says int64."""
        array: NDArray[Any] = np.array(value, dtype=dtype, order="C")
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            self._initializers.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """One node of one output; with ``outputs`` above 1 use :meth:`split`."""
        return self._add(kind, inputs, outputs, attributes)[0]

    def whole(self, *values: int) -> str:
        """An int64 vector."""
        return self.constant(values, np.int64)

    def reshape(self, x: str, *shape: int) -> str:
        """0 keeps the dimension at that place, -1 is inferred."""
        return self.node("Reshape", x, self.whole(*shape))

    def transpose(self, x: str, *order: int) -> str:
        """Reorder the dimensions."""
        return self.node("Transpose", x, perm=list(order))

    def cut(self, x: str, axis: int, start: int, end: int | str) -> str:
        """``x[start:end]`` along ``axis``; ``end`` may be the name of an int64 vector of one element."""
        stop = end if isinstance(end, str) else self.whole(end)
        return self.node("Slice", x, self.whole(start), stop, self.whole(axis))

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """Cut ``x`` into pieces of ``sizes`` along ``axis``."""
        return self._add("Split", (x, self.whole(*sizes)), len(sizes), {"axis": axis})

    def pad(self, x: str, before: Sequence[int], after: Sequence[int]) -> str:
        """Zeros around ``x``, so many for each dimension."""
        return self.node("Pad", x, self.whole(*before, *after))

    def linear(self, x: str, matrix: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> str:
        """``x @ matrix + bias``; matrix [inputs, outputs]."""
        product = self.node("MatMul", x, self.constant(matrix))
        return product if bias is None else self.node("Add", product, self.constant(bias))

    def model(self, name: str, inputs: dict[str, list[str]], outputs: dict[str, list[str | int]]) -> onnx.ModelProto:
        """The graph: ``inputs`` are float32, ``outputs`` int32, both with their dimensions (a name is dynamic)."""
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(key, TensorProto.FLOAT, dims) for key, dims in inputs.items()],
            [helper.make_tensor_value_info(key, TensorProto.INT32, dims) for key, dims in outputs.items()],
            self._initializers,
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="voxstage")

    def rename(self, value: str, name: str) -> None:
        """Give the output of the last node its public name."""
        last = self._nodes[-1]
        assert last.output[0] == value
        last.output[0] = name

    def _add(self, kind: str, inputs: Sequence[str], outputs: int, attributes: dict[str, object]) -> list[str]:
        at = len(self._nodes)
        names = [f"{kind}_{at}" if outputs == 1 else f"{kind}_{at}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{at}", **attributes))
        return names
