"""Byte budget of constants that are computed from a model: it limits folding, value propagation and memory.

A file of a kilobyte can request any amount of memory: forty Concats, each of its predecessor with itself, turn one value into 2^40.  So
every folded tensor is counted here first, with its size by shape arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from compiler.frontend.onnx_io.attributes import known_shapes, label
from simulator.npu.errors import BadInputError

LEAST_LIMIT_BYTES = 1 << 31  # the budget is never below this
TIMES_THE_MODEL = 4  # budget as a multiple of the model's bytes
REPEATED_NODE_BYTES = 1 << 16  # cost of a node of an unrolled loop, per iteration: it is copied repeatedly
LIBRARY_PART = 8  # a library holds copies of a folded tensor in onnxruntime, numpy and protobuf


class ByteBudget:
    """Budget of one model.  total_bytes: the larger of 1 GiB and twice the model's constants, half of the sandbox's memory limit.

    Bytes are never returned: a pass keeps its tensors, or hands them on.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes, self.spent_bytes = total_bytes, 0

    @classmethod
    def of(cls, model: ModelProto) -> ByteBudget:
        return cls(memory_limit(constant_bytes(model)) // 2)

    def take(self, size_bytes: int, part: int = 1) -> bool:
        """Count a tensor if it fits.  part: divisor of the total, `LIBRARY_PART` for tensors of a library."""
        if self.spent_bytes + size_bytes > self.total_bytes // part:
            return False
        self.spent_bytes += size_bytes
        return True

    def spend(self, size_bytes: int, node: NodeProto) -> None:
        """Count the output of a node.  Raises `BadInputError` beyond the budget."""
        if not self.take(size_bytes):
            raise BadInputError(
                f"{label(node)}: {size_bytes:,} bytes of constants; {self.total_bytes:,} may be made of this model's, "
                f"{self.spent_bytes:,} are already"
            )


def memory_limit(model_bytes: int) -> int:
    """Bytes of address space of the sandbox process (`compiler.frontend.onnx_io.onnx_sandbox`)."""
    return max(LEAST_LIMIT_BYTES, TIMES_THE_MODEL * model_bytes)


def constant_bytes(model: ModelProto) -> int:
    """Bytes of initialisers and Constant nodes, near the file size.  Protobuf's `ByteSize` would serialise the model."""
    inline = (item.t for node in model.graph.node if node.op_type == "Constant" for item in node.attribute)
    return sum(tensor_bytes(tensor) for tensor in (*model.graph.initializer, *inline))


def tensor_bytes(tensor: TensorProto) -> int:
    return math.prod(tensor.dims) * item_bytes(tensor.data_type)


def item_bytes(data_type: int) -> int:
    """Bytes of an element; types below a byte, or of variable size, as in numpy."""
    return int(helper.tensor_dtype_to_np_dtype(data_type).itemsize) if data_type else 0


# operators whose values shape inference propagates -> number of values, from those of their inputs
FOLLOWED: dict[str, Callable[[Sequence[int]], int]] = {
    "Add": max, "Cast": max, "Concat": sum, "Gather": lambda lengths: lengths[-1], "Mul": max, "Shape": lambda _: _MOST_AXES,
    "Size": lambda _: 1, "Slice": lambda lengths: lengths[0], "Squeeze": lambda lengths: lengths[0], "Sub": max,
    "Unsqueeze": lambda lengths: lengths[0],
}  # fmt: skip
_VALUE_BYTES = 64  # bytes of a propagated value: a dimension in protobuf
_MOST_AXES = 64  # numpy's limit


def can_follow(graph: GraphProto, budget: ByteBudget, outer: Mapping[str, int] | None = None) -> bool:
    """Whether onnx's shape inference may also propagate values: all elements of every vector, known or not.

    graph: with shapes inferred without values.  outer: lengths of tensors of the outer graph.
    """
    vectors = {name: math.prod(dims) if len(dims) < 2 else 0 for name, dims in known_shapes(graph).items()}
    lengths = {**(outer or {}), **vectors}
    for node in graph.node:
        inner = (inner for attribute in node.attribute for inner in (attribute.g, *attribute.graphs))
        if not all(can_follow(graph, budget, lengths) for graph in inner):
            return False
        rule = FOLLOWED.get(node.op_type)
        if rule is None or node.domain not in ("", "ai.onnx") or not node.input or not node.output:
            continue
        inputs = [lengths.get(name, 0) for name in node.input]
        length = lengths.setdefault(node.output[0], rule(inputs))
        if not budget.take((length + sum(inputs)) * _VALUE_BYTES):
            return False
    return True
