"""Small models that ask for much: a seeded generator, and a process with 2 GiB of memory that takes them through load and lower.

`python -m tests.hostile_models FIRST COUNT FOLDER` prints a line for each: its number, its parts, seconds, and what came of it.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

MEMORY_BYTES = 2 << 30
MOST_S = 60  # for one model, on a computer that has other things to do
SIZES = (
    0,
    1,
    2,
    3,
    7,
    64,
    1000,
    1 << 16,
    (1 << 16) + 1,
    1 << 20,
    1 << 26,
    (1 << 28) - 1,
    1 << 30,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
)
ODD = (*SIZES, -1, -2, -(1 << 31), -(1 << 63), (1 << 63) - 1)


class Hostile:
    """The model of a seed; every part leaves a tensor that the next ones may read."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.opset = self.rng.choice((17, 17, 17, 17, 17, 17, 20, 13, 11, 9))
        self.nodes: list[NodeProto] = []
        self.initial: list[TensorProto] = []
        self.names = 0
        self.runtime, self.constants = ["x"], [self.constant(np.ones(1, np.float32)), self.constant(np.ones((1, 3, 1, 1), np.float32))]
        self.parts = [self.rng.choice(list(PARTS)) for _ in range(self.rng.choice((1, 1, 2, 3, 5)))]
        for part in self.parts:
            out = PARTS[part](self)
            (self.constants if self.rng.random() < 0.5 else self.runtime).append(out)

    def fresh(self) -> str:
        self.names += 1
        return f"t{self.names}"

    def constant(self, values: Any, dtype: Any = None) -> str:
        name = self.fresh()
        if self.rng.random() < 0.3 and self.names > 2:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(values, dtype), name)))
        else:
            self.initial.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant([min(max(v, -(1 << 63)), (1 << 63) - 1) for v in values], np.int64)

    def node(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        name = self.fresh()
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def size(self) -> int:
        return self.rng.choice(SIZES)

    def some(self) -> str:
        """A tensor: of constants twice as often."""
        return self.rng.choice(self.rng.choice((self.constants, self.constants, self.runtime)))

    def model(self) -> ModelProto:
        rng = self.rng
        last = self.nodes[-1].output[0] if self.nodes else "x"
        end = rng.choice(("add", "max", "max", "relu", "last"))
        if end == "max":
            last = self.node("ReduceMax", [self.node("Cast", [last], to=TensorProto.FLOAT)], keepdims=0)
        if end == "relu":
            last = self.node("Relu", ["x"])
        elif end != "last":
            last = self.node("Add", ["x", last])
        dims = [1, 3, 8, 8] if rng.random() < 0.9 else [self.size() for _ in range(rng.choice((1, 2, 4, 5)))]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
        y = helper.make_tensor_value_info(last, TensorProto.FLOAT, list("abcd")[: 4 if end != "last" else rng.choice((1, 2, 4))])
        graph = helper.make_graph(self.nodes, "hostile", [x], [y], self.initial)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        if rng.random() < 0.05:
            rng.shuffle(order := list(model.graph.node))
            del model.graph.node[:]
            model.graph.node.extend(order)
        return model


def doubled(h: Hostile) -> str:
    name = h.ints(1) if h.rng.random() < 0.5 else h.constants[0]
    for _ in range(h.rng.choice((5, 16, 20, 27, 31, 45))):
        name = h.node("Concat", [name, name], axis=0)
    return name


def doubled_by_sums(h: Hostile) -> str:
    """Outer sums: n x 1 and 1 x n."""
    n = h.rng.choice((64, 1000, 30000))
    flat = h.node("Expand", [h.constants[0], h.ints(n)])
    return h.node(h.rng.choice(("Add", "Mul")), [h.node("Reshape", [flat, h.ints(n, 1)]), h.node("Reshape", [flat, h.ints(1, n)])])


def outer_product(h: Hostile) -> str:
    n = h.rng.choice((64, 5000, 60000))
    column = h.node("ConstantOfShape", [h.ints(n, 1)])
    return h.node("MatMul", [column, h.node("ConstantOfShape", [h.ints(1, n)])])


def computed_shape(h: Hostile) -> str:
    """A shape that inference does not follow, nor the budget: it is known once it has been folded."""
    ones = h.node("ConstantOfShape", [h.ints(h.rng.choice((1, 2, 4)))], value=helper.make_tensor("v", TensorProto.INT64, [1], [h.size()]))
    same = h.node("Equal", [ones, h.ints(-1)])
    shape = h.node("Where", [same, h.ints(1), ones])
    return h.node("Expand", [h.some(), shape]) if h.rng.random() < 0.7 else h.node("ConstantOfShape", [shape])


def many(h: Hostile) -> str:
    """Each within any bound for one."""
    shape = h.ints(h.rng.choice((60000, 1 << 20)))
    out = h.node("ConstantOfShape", [shape])
    for _ in range(h.rng.choice((100, 400))):
        out = h.node("Add", [out, h.node("ConstantOfShape", [shape])])
    return out


def nested(h: Hostile) -> str:
    """Loops or Ifs in one another."""
    loop = h.rng.random() < 0.5
    count, yes = h.ints(h.size()), h.constant(True, np.bool_)
    number = helper.make_tensor_value_info
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["inner"])], "g", [], [number("inner", TensorProto.FLOAT, None)])
    for depth in range(h.rng.choice((1, 2, 8, 20, 30))):
        if loop:
            ports = [number(f"i{depth}", TensorProto.INT64, []), number(f"c{depth}", TensorProto.BOOL, [])]
            nodes = [*body.node, helper.make_node("Identity", [f"c{depth}"], [f"k{depth}"])]
            outs = [number(f"k{depth}", TensorProto.BOOL, []), body.output[0]]
            inner = helper.make_graph(nodes, "g", ports, outs)
            node = helper.make_node("Loop", [count, yes], [f"o{depth}"], body=inner)
        else:
            node = helper.make_node("If", [yes], [f"o{depth}"], then_branch=body, else_branch=body if depth < 8 else helper.make_graph(
                [helper.make_node("Identity", ["x"], ["other"])], "g", [], [number("other", TensorProto.FLOAT, None)]))  # fmt: skip
        body = helper.make_graph([node], "g", [], [number(f"o{depth}", TensorProto.FLOAT, None)])
    h.nodes.append(body.node[0])
    return str(body.node[0].output[0])


def deep(h: Hostile) -> str:
    """Ranks that grow."""
    out = h.some()
    for _ in range(h.rng.choice((30, 70, 1000))):
        out = h.node("Unsqueeze", [out, h.ints(0)]) if h.opset >= 13 else h.node("Unsqueeze", [out], axes=[0])
    return out


def windowed(h: Hostile) -> str:
    op_type = h.rng.choice(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"))
    keys = h.rng.sample(("strides", "dilations", "pads", "kernel_shape", "output_padding", "output_shape"), 2)
    values = {key: [h.rng.choice(ODD) for _ in range(4 if key == "pads" else 2)] for key in keys}
    inputs = [h.some()] + ([h.constant(np.ones((3, 3, 1, 1), np.float32))] if "Conv" in op_type else [])
    extra = {"group": h.rng.choice(ODD)} if "Conv" in op_type and h.rng.random() < 0.3 else {}
    if "Pool" in op_type:
        values.setdefault("kernel_shape", [2, 2])
    return h.node(op_type, inputs, **values, **extra)


def lied(h: Hostile) -> str:
    """A constant that is not as long as it says."""
    tensor = TensorProto(
        name=h.fresh(), data_type=h.rng.choice((1, 7, 10, 8, 22, 99)), dims=[h.rng.choice(ODD) for _ in range(h.rng.choice((1, 2)))]
    )
    tensor.raw_data = b"\0" * 8
    h.initial.append(tensor)
    return h.node("Mul", [tensor.name, h.some()])


def named(h: Hostile) -> str:
    """A name of its own past, of another node, or of none."""
    node = helper.make_node("Relu", [h.rng.choice(("t1", "later", "", "x"))], [h.rng.choice(("t1", "later", "", "x", "y\n\0"))])
    h.nodes.append(node)
    return h.node("Relu", [node.output[0]])


def oddly(h: Hostile) -> str:
    """An attribute that is none of its operator's, or of another type."""
    op_type = h.rng.choice(("LRN", "Softmax", "Transpose", "Concat", "Cast", "Gemm", "Flatten", "ReduceMean", "Shape", "Gather", "LSTM"))
    key = h.rng.choice(("axis", "perm", "size", "to", "alpha", "axes", "transA", "start", "hidden_size"))
    value: Any = h.rng.choice((h.rng.choice(ODD), [h.rng.choice(ODD)] * 2, 1e38, "\udcff"[:0] + "x" * 3, [0, 0]))
    return h.node(op_type, [h.some() for _ in range(h.rng.choice((1, 2, 3)))], **{key: value})


SCALES = (1e-9, 0, 0.5, 2, 1e3, 1e6, 1e20, np.nan, -1)
MODES = ("nearest", "linear", "cubic")
EQUATIONS = ("i,j->ij", "...,...", "abcd,abcd->", "abcd,efgh->abcdefgh", "ijk", "a" * 60)
ZERO = helper.make_tensor("v", TensorProto.INT64, [1], [0])
PARTS: dict[str, Callable[[Hostile], str]] = {
    "doubled": doubled,
    "doubled_by_sums": doubled_by_sums,
    "outer_product": outer_product,
    "computed_shape": computed_shape,
    "many": many,
    "nested": nested,
    "deep": deep,
    "windowed": windowed,
    "lied": lied,
    "named": named,
    "oddly": oddly,
    "tile": lambda h: h.node("Tile", [h.some(), h.ints(*(h.size() for _ in range(h.rng.choice((1, 4)))))]),
    "expand": lambda h: h.node("Expand", [h.some(), h.ints(*(h.size() for _ in range(h.rng.choice((1, 4, 5, 70)))))]),
    "filled": lambda h: h.node("ConstantOfShape", [h.ints(*(h.rng.choice(ODD) for _ in range(h.rng.choice((1, 2, 4)))))]),
    "range": lambda h: h.node("Range", [h.constant(np.int64(v)) for v in (0, h.size(), h.rng.choice((1, 0, -1)))]),
    "range_of_floats": lambda h: h.node("Range", [h.constant(np.float32(v)) for v in (0, h.rng.choice((1e9, 1e38, np.inf, np.nan)), 1e-3)]),
    "pad": lambda h: h.node("Pad", [h.some(), h.ints(*(h.rng.choice(ODD) for _ in range(8)))]),
    "resize": lambda h: h.node("Resize", [h.some(), "", h.constant(np.float32([1, 1, *h.rng.choices(SCALES, k=2)]))]),
    "resize_to": lambda h: h.node("Resize", [h.some(), "", "", h.ints(1, 3, h.size(), h.size())], mode=h.rng.choice(MODES)),
    "upsample": lambda h: h.node("Upsample", [h.some(), h.constant(np.float32([1, 1, h.rng.choice((2, 1e6)), 1e6]))]),
    "gather": lambda h: h.node("Gather", [h.some(), h.node("ConstantOfShape", [h.ints(h.size(), h.size())], value=ZERO)]),
    "one_hot": lambda h: h.node("OneHot", [h.ints(0, 1), h.ints(h.size()), h.constant(np.float32([0, 1]))]),
    "depth_to_space": lambda h: h.node(h.rng.choice(("DepthToSpace", "SpaceToDepth")), [h.some()], blocksize=h.rng.choice(ODD)),
    "split_to_sequence": lambda h: h.node("SplitToSequence", [h.some(), h.constant(np.int64(h.rng.choice(ODD)))]),
    "split": lambda h: h.node("Split", [h.some(), h.ints(h.rng.choice(ODD), h.rng.choice(ODD))], axis=h.rng.choice((0, 1, -9))),
    "slice": lambda h: h.node("Slice", [h.some(), *(h.ints(h.rng.choice(ODD)) for _ in range(2)), h.ints(0), h.ints(h.rng.choice(ODD))]),
    "reshape": lambda h: h.node("Reshape", [h.some(), h.ints(*h.rng.choices(ODD, k=3))], allowzero=h.rng.choice((0, 1))),
    "reshape_back": lambda h: h.node("Reshape", [h.node("Reshape", [h.some(), h.ints(-1)]), h.node("Shape", [h.some()])]),
    "eye": lambda h: h.node("EyeLike", [h.node("ConstantOfShape", [h.ints(h.size(), h.size())])]),
    "einsum": lambda h: h.node("Einsum", [h.some(), h.some()], equation=h.rng.choice(EQUATIONS)),
    "where": lambda h: h.node("Where", [h.constant([True], np.bool_), h.some(), h.node("ConstantOfShape", [h.ints(h.size(), 1)])]),
    "cast": lambda h: h.node("Cast", [h.some()], to=h.rng.choice((1, 7, 8, 10, 11, 16, 22, 0, 99))),
}  # fmt: skip


def _timed_out(*_: object) -> None:
    raise TimeoutError


def taken(path: Path, seed: int) -> str:
    """What comes of a file: what is refused, or how many operators there are.  Anything but a `TilefarmError` goes through."""
    from compiler.frontend import load_model
    from compiler.frontend.lower import lower_partition
    from simulator.npu.errors import TilefarmError

    try:
        graphs, _ = lower_partition(load_model(path, random_weights=0 if seed % 4 == 0 else None))
        return f"{sum(len(graph.operators) for graph in graphs)} operators"
    except TilefarmError as error:
        text = str(error)
        assert text, "an empty line"
        assert len(text.splitlines()) == 1, text
        return f"refused: {text}"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _timed_out)
    first, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    for seed in range(first, first + count):
        hostile = Hostile(seed)
        path = folder / f"h{seed}.onnx"
        path.write_bytes(hostile.model().SerializeToString())
        print(seed, "+".join(hostile.parts), end=" ", flush=True)
        signal.alarm(MOST_S)
        begin = time.perf_counter()
        said = taken(path, seed)
        signal.alarm(0)
        print(f"{time.perf_counter() - begin:.2f} s", said.replace(str(folder), ""), flush=True)
        path.unlink()
