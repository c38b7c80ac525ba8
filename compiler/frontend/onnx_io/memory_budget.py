"""How many bytes may be made of a model's constants: one number, from which nodes are folded, shapes are followed and memory is limited.

A file of a kilobyte can ask for any amount of memory: forty Concats, each of its predecessor and itself, make 2^40 values of one.  So
whatever makes a tensor of constants asks here first, with the size that shape arithmetic gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from compiler.frontend.onnx_io.attributes import known_shapes, label
from simulator.npu.errors import BadInputError

LEAST_LIMIT_BYTES = 1 << 31
TIMES_THE_MODEL = 4
REPEATED_NODE_BYTES = 1 << 16  # what counts for a node of a loop's body, each time: it is looked at and copied over and over
LIBRARY_PART = 8  # what a library folds it has in onnxruntime, in numpy and in protobuf, in copies


class ByteBudget:
    """total_bytes: the larger of 1 GiB and twice the model's constants, half of what the process of the libraries may take.

    Nothing is given back: what a pass over the model makes it keeps, or hands on.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes, self.spent_bytes = total_bytes, 0

    @classmethod
    def of(cls, model: ModelProto) -> ByteBudget:
        return cls(memory_limit(constant_bytes(model)) // 2)

    def take(self, size_bytes: int, part: int = 1) -> bool:
        """Count a tensor if it fits; part: `LIBRARY_PART` of one that a library makes, for which that fraction of the whole is there."""
        if self.spent_bytes + size_bytes > self.total_bytes // part:
            return False
        self.spent_bytes += size_bytes
        return True

    def spend(self, size_bytes: int, node: NodeProto) -> None:
        """Count what a node makes.  Raises `BadInputError`."""
        if not self.take(size_bytes):
            raise BadInputError(
                f"{label(node)}: {size_bytes:,} bytes of constants; {self.total_bytes:,} may be made of this model's, "
                f"{self.spent_bytes:,} are already"
            )


def memory_limit(model_bytes: int) -> int:
    """Bytes of address space for the process that the libraries run in (`compiler.frontend.onnx_io.onnx_sandbox`)."""
    return max(LEAST_LIMIT_BYTES, TIMES_THE_MODEL * model_bytes)


def constant_bytes(model: ModelProto) -> int:
    """Of initialisers and Constant nodes: a file's size, but for its names.  Protobuf's own answer would serialise the model."""
    inline = (item.t for node in model.graph.node if node.op_type == "Constant" for item in node.attribute)
    return sum(tensor_bytes(tensor) for tensor in (*model.graph.initializer, *inline))


def tensor_bytes(tensor: TensorProto) -> int:
    return math.prod(tensor.dims) * item_bytes(tensor.data_type)


def item_bytes(data_type: int) -> int:
    """Of an element; types of less than a byte, or of no fixed size, as numpy holds them."""
    return int(helper.tensor_dtype_to_np_dtype(data_type).itemsize) if data_type else 0


# operators whose results shape inference follows -> how many values that are, from those of their inputs
FOLLOWED: dict[str, Callable[[Sequence[int]], int]] = {
    "Add": max, "Cast": max, "Concat": sum, "Gather": lambda lengths: lengths[-1], "Mul": max, "Shape": lambda _: _MOST_AXES,
    "Size": lambda _: 1, "Slice": lambda lengths: lengths[0], "Squeeze": lambda lengths: lengths[0], "Sub": max,
    "Unsqueeze": lambda lengths: lengths[0],
}  # fmt: skip
_VALUE_BYTES = 64  # of a value that is followed: a dimension as protobuf has it
_MOST_AXES = 64  # numpy's limit


def can_follow(graph: GraphProto, budget: ByteBudget, outer: Mapping[str, int] | None = None) -> bool:
    """Whether onnx's shape inference may follow values too: those of every vector that it meets, known or not, one by one.

    graph: with the shapes that it finds without.  outer: lengths of what there is around it.
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
        made = lengths.setdefault(node.output[0], rule(inputs))
        if not budget.take((made + sum(inputs)) * _VALUE_BYTES):
            return False
    return True
