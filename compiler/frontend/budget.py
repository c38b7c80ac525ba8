"""How many bytes may be made of a model's constants: one number, from which nodes are folded, shapes are followed and memory is limited.

A file of a kilobyte can ask for any amount of memory: forty Concats, each of its predecessor and itself, make 2^40 values of one.  So
whatever makes a tensor of constants asks here first, with the size that shape arithmetic gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from compiler.frontend.attributes import label
from simulator.npu.errors import BadInputError

LEAST_LIMIT_BYTES = 1 << 31
TIMES_THE_MODEL = 4


class Budget:
    """total_bytes: the larger of 1 GiB and twice the model's constants, half of what the process of the libraries may take.

    Nothing is given back: what a pass over the model makes it keeps, or hands on.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes, self.spent_bytes = total_bytes, 0

    @classmethod
    def of(cls, model: ModelProto) -> Budget:
        return cls(memory_limit(constant_bytes(model)) // 2)

    def take(self, size_bytes: int, part: int = 1) -> bool:
        """Count a tensor if it fits; part: 8 where only an eighth of the whole is there for such ones."""
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
    """Bytes of address space for the process that the libraries run in (`compiler.frontend.libraries`)."""
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


# length of what shape inference knows the values of -> from the lengths of the inputs; who asks has them all
_FOLLOWED: dict[str, Callable[[Sequence[int]], int]] = {
    "Add": max, "Cast": max, "Concat": sum, "Gather": lambda lengths: lengths[-1], "Mul": max, "Slice": lambda lengths: lengths[0],
    "Squeeze": lambda lengths: lengths[0], "Sub": max, "Unsqueeze": lambda lengths: lengths[0],
}  # fmt: skip
_VALUE_BYTES = 64  # of a value that is followed: a dimension as protobuf has it
_MOST_AXES = 64  # numpy's limit


def follow(graph: GraphProto, budget: Budget, outer: Mapping[str, int] | None = None) -> None:
    """Count the values that onnx's shape inference will follow.  Raises `BadInputError`.

    outer: lengths of what is followed around the graph.
    """
    lengths = {**(outer or {}), **{item.name: math.prod(item.dims) for item in graph.initializer}}
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                follow(inner, budget, lengths)
        if node.domain not in ("", "ai.onnx") or not node.output:
            continue
        rule = _FOLLOWED.get(node.op_type)
        if node.op_type == "Constant":
            lengths[node.output[0]] = sum(math.prod(item.t.dims) + len(item.ints) + len(item.floats) for item in node.attribute)
        elif node.op_type in ("Shape", "Size"):
            lengths[node.output[0]] = _MOST_AXES
        elif rule is not None and node.input and all(name in lengths for name in node.input if name):
            lengths[node.output[0]] = rule([lengths.get(name, 0) for name in node.input])
            budget.spend(lengths[node.output[0]] * _VALUE_BYTES, node)
