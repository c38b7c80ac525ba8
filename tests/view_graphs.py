"""Random models of one operator between views: of every operator that the frontend says it supports, over 1 to 5 axes.

A view reorders, cuts or renames axes (`VIEWS`); a case is an operator as it may stand on a tensor of any shape (`CASES`), with whatever
Reshape gives it the axes that it has to have.  Which of these the NPU takes is another matter: onnxruntime takes all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
OPSETS = (18, 21)
SIZES = (1, 1, 2, 2, 3, 4, 5, 6, 8)
MOST_VALUES = 1500  # of an input


class ViewGraph:
    """A model in the making; every method appends a node and answers with its output."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.opset = rng, OPSETS[int(rng.integers(len(OPSETS)))]
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.types: dict[str, onnx.TypeProto] = {}
        self.inputs: list[str] = []

    def input(self, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.types[name] = helper.make_tensor_type_proto(dtype, list(shape))
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(d.dim_value for d in self.types[name].tensor_type.shape.dim)

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def constant(self, values: Array) -> str:
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        self.types[name] = helper.make_tensor_type_proto(self.constants[-1].data_type, list(np.shape(values)))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def normal(self, *shape: int, mean: float = 0.0, std: float = 1.0) -> str:
        return self.constant((self.rng.standard_normal(shape) * std + mean).astype(np.float32))

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **values: Any) -> str:
        return self.nodes_of(op, inputs, outputs, **values)[0]

    def nodes_of(self, op: str, inputs: Sequence[str], outputs: int, **values: Any) -> list[str]:
        names = [f"t{len(self.nodes)}" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)]
        node = helper.make_node(op, inputs, names, name=names[0], **values)
        known = {tensor.name: tensor for tensor in self.constants}
        found = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(op, self.opset),
            node,
            {name: self.types[name] for name in inputs if name},
            {name: known[name] for name in inputs if name in known},
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=10,
        )
        self.nodes.append(node)
        self.types |= found
        return names

    def model(self, outputs: Sequence[str]) -> ModelProto:
        ports = [[helper.make_value_info(name, self.types[name]) for name in names] for names in (self.inputs, dict.fromkeys(outputs))]
        graph = helper.make_graph(self.nodes, "views", *ports, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    # -- drawing ----------------------------------------------------------------------------------------------------

    def one_of(self, *items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def axis(self, name: str) -> int:
        """Any axis, counted from the front or from behind."""
        rank = self.rank(name)
        return int(self.rng.integers(-rank, rank))

    def axes(self, name: str) -> list[int]:
        """A set of axes of any size but none."""
        rank = self.rank(name)
        chosen = self.rng.permutation(rank)[: int(self.rng.integers(1, rank + 1))]
        return [int(a) - (rank if self.rng.integers(2) else 0) for a in chosen]

    def split_size(self, size: int, rank: int) -> list[int]:
        """A size as the product of so many."""
        found = [1] * rank
        for prime in _primes(size):
            found[int(self.rng.integers(rank))] *= prime
        return found

    def of_rank(self, x: str, rank: int) -> str:
        """A tensor with so many axes: itself, or reshaped; neighbours are joined, axes of one are put in, or anything else."""
        shape = list(self.shape(x))
        if len(shape) == rank:
            return x
        if self.rng.integers(3) == 0:
            return self.node("Reshape", [x, self.ints(*self.split_size(math.prod(shape), rank))])
        while len(shape) > rank:
            at = int(self.rng.integers(len(shape) - 1))
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        while len(shape) < rank:
            shape.insert(int(self.rng.integers(len(shape) + 1)), 1)
        return self.node("Reshape", [x, self.ints(*shape)])

    def constant_beside(self, x: str) -> str:
        """A constant that is broadcast to a tensor, or is as large."""
        shape = [d if self.rng.integers(2) else 1 for d in self.shape(x)]
        shape = [1] * int(self.one_of(0, 0, 0, 1)) + shape
        return self.normal(*shape[int(self.rng.integers(len(shape) + 1)) :], mean=2.0, std=0.3)


def _primes(size: int) -> list[int]:
    out, p = [], 2
    while size > 1:
        while size % p == 0:
            out.append(p)
            size //= p
        p += 1
    return out


Maker = Callable[[ViewGraph, str], str]  # the last operator's output, of a tensor


def _reshape(g: ViewGraph, x: str) -> str:
    shape = list(g.shape(x))
    kind = g.rng.integers(4)
    if kind == 0:
        target = g.split_size(math.prod(shape), int(g.rng.integers(1, 6)))
    elif kind == 1 and len(shape) < 5:  # one axis as two
        at = int(g.rng.integers(len(shape)))
        target = [*shape[:at], *g.split_size(shape[at], 2), *shape[at + 1 :]]
    elif len(shape) > 1:  # two axes as one
        at = int(g.rng.integers(len(shape) - 1))
        target = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    else:
        target = g.split_size(shape[0], 3)
    if g.rng.integers(3) == 0:
        target[int(g.rng.integers(len(target)))] = -1
    return g.node("Reshape", [x, g.ints(*target)])


def _squeeze(g: ViewGraph, x: str) -> str:
    ones = [i for i, d in enumerate(g.shape(x)) if d == 1]
    if not ones or g.rank(x) == len(ones):
        return x
    chosen = g.rng.permutation(ones)[: int(g.rng.integers(1, len(ones) + 1))]
    return g.node("Squeeze", [x, g.ints(*map(int, chosen))])


def _unsqueeze(g: ViewGraph, x: str) -> str:
    return x if g.rank(x) > 4 else g.node("Unsqueeze", [x, g.ints(int(g.rng.integers(g.rank(x) + 1)))])


def _slice(g: ViewGraph, x: str) -> str:
    axis, step = g.axis(x), int(g.one_of(1, 1, 1, 2, 3, -1, -2))
    size = g.shape(x)[axis]
    begin = int(g.rng.integers(size))
    end = int(g.rng.integers(begin + 1, size + 1))
    if step < 0:
        begin, end = end - 1, begin - 1 if begin else -size - 1
    more = [g.ints(axis), g.ints(step)] if step != 1 or axis != 0 or g.rng.integers(2) else []
    return g.node("Slice", [x, g.ints(begin), g.ints(end), *more])


def _split(g: ViewGraph, x: str) -> str:
    axis = g.axis(x)
    size = g.shape(x)[axis]
    if size == 1:
        return x
    first = int(g.rng.integers(1, size))
    parts = g.nodes_of("Split", [x, g.ints(first, size - first)], 2, axis=axis)
    return str(g.one_of(*parts))


def _expand(g: ViewGraph, x: str) -> str:
    shape = [int(g.one_of(1, 2, 3)) if d == 1 else d for d in g.shape(x)]
    return g.node("Expand", [x, g.ints(*shape)])


def _tile(g: ViewGraph, x: str) -> str:
    most = max(1, MOST_VALUES // math.prod(g.shape(x)))
    repeats = [1] * g.rank(x)
    repeats[g.axis(x)] = int(g.rng.integers(1, min(4, most + 1)))
    return g.node("Tile", [x, g.ints(*repeats)])


def _gather(g: ViewGraph, x: str) -> str:
    axis = g.axis(x)
    size = g.shape(x)[axis]
    begin = int(g.rng.integers(size))
    if g.rng.integers(2) and g.rank(x) > 1:
        return g.node("Gather", [x, g.constant(np.array(begin, np.int64))], axis=axis)
    return g.node("Gather", [x, g.ints(*range(begin, int(g.rng.integers(begin + 1, size + 1))))], axis=axis)


def _transpose(g: ViewGraph, x: str) -> str:
    return g.node("Transpose", [x], perm=[int(a) for a in g.rng.permutation(g.rank(x))])


def _flatten(g: ViewGraph, x: str) -> str:
    return g.node("Flatten", [x], axis=int(g.rng.integers(g.rank(x) + 1)))


VIEWS: dict[str, Maker] = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Flatten": _flatten,
    "Expand": _expand,
    "Tile": _tile,
    "Identity": lambda g, x: g.node("Identity", [x]),
}


def _where(g: ViewGraph, x: str) -> str:
    condition = g.constant(np.full([1] * g.rank(x), bool(g.rng.integers(2))))
    return g.node("Where", [condition, x, g.normal()] if g.constants[-1].raw_data == b"\1" else [condition, g.normal(), x])


def _window(g: ViewGraph, x: str, kernel: Sequence[int], most_stride: int = 3, dilated: bool = True) -> dict[str, Any]:
    """Of two ends for each spatial axis."""
    sizes = g.shape(x)[2:]
    dilations = [int(g.one_of(1, 1, 2)) if dilated else 1 for _ in kernel]
    pads = [int(g.rng.integers(0, k)) for k in (*kernel, *kernel)]
    for i, (size, k, d) in enumerate(zip(sizes, kernel, dilations, strict=True)):
        if (k - 1) * d + 1 > size + pads[i] + pads[i + len(kernel)]:
            dilations[i] = 1
            missing = k - size - pads[i] - pads[i + len(kernel)]
            pads[i] += max(0, missing)
    values: dict[str, Any] = {"pads": pads, "strides": [int(g.rng.integers(1, most_stride + 1)) for _ in kernel]}
    return values | ({"dilations": dilations} if dilated else {})


def _image(g: ViewGraph, x: str) -> str:
    return g.of_rank(x, int(g.one_of(3, 4)))


def _conv(g: ViewGraph, x: str) -> str:
    x = _image(g, x)
    c = g.shape(x)[1]
    groups = int(g.one_of(*[d for d in range(1, c + 1) if c % d == 0]))
    kernel = [int(g.one_of(1, 1, 2, 3)) for _ in g.shape(x)[2:]]
    out = groups * int(g.rng.integers(1, 4))
    values = _window(g, x, kernel)
    if g.rng.integers(4) == 0:
        values |= {"pads": [int(p) + int(g.rng.integers(3)) for p in values["pads"]]}
    bias = [g.normal(out)] if g.rng.integers(2) else []
    return g.node("Conv", [x, g.normal(out, c // groups, *kernel), *bias], group=groups, **values)


def _conv_transpose(g: ViewGraph, x: str) -> str:
    x = _image(g, x)
    c = g.shape(x)[1]
    kernel = [int(g.rng.integers(1, 4)) for _ in g.shape(x)[2:]]
    strides = [int(g.rng.integers(1, 3)) for _ in kernel]
    return g.node("ConvTranspose", [x, g.normal(c, int(g.rng.integers(1, 4)), *kernel)], strides=strides)


def _gemm(g: ViewGraph, x: str) -> str:
    x = g.of_rank(x, 2)
    k, m, turned = g.shape(x)[1], int(g.rng.integers(1, 7)), int(g.rng.integers(2))
    bias = [g.normal(*g.one_of((m,), (1, m), (1,)))] if g.rng.integers(2) else []
    values = {"alpha": 0.5, "beta": 2.0} if g.rng.integers(4) == 0 else {}
    return g.node("Gemm", [x, g.normal(*((m, k) if turned else (k, m))), *bias], transB=turned, **values)


def _matmul(g: ViewGraph, x: str) -> str:
    x = x if g.rank(x) > 1 else g.of_rank(x, 2)
    *_, s, k = g.shape(x)
    m = int(g.rng.integers(1, 7))
    kind = g.rng.integers(4)
    if kind == 0:
        return g.node("MatMul", [g.normal(m, s), x])
    if kind < 3:
        return g.node("MatMul", [x, g.normal(*(1,) * int(g.one_of(0, 0, g.rank(x) - 2, g.rng.integers(3))), k, m)])
    other = g.node("Transpose", [g.node("Neg", [x])], perm=[*range(g.rank(x) - 2), g.rank(x) - 1, g.rank(x) - 2])
    return g.node("MatMul", [x, other] if g.rng.integers(2) else [other, x])


EQUATIONS = (
    "ij,jk->ik",
    "bij,bjk->bik",
    "bhid,bhjd->bhij",
    "bhij,bhjd->bhid",
    "bihd,bjhd->bhij",
    "ij,kj",
    "bij,kl->bikjl",
    "ijk,lk->jil",
    "bij,bij->bij",
    "i,j->ij",
    "bi,bj->bij",
)


def _einsum(g: ViewGraph, x: str) -> str:
    equation = str(g.one_of(*EQUATIONS, "ijk->kij"))
    terms = equation.partition("->")[0].split(",")
    x = g.of_rank(x, len(terms[0]))
    if len(terms) == 1:
        return g.node("Einsum", [x], equation=equation)
    sizes = dict(zip(terms[0], g.shape(x), strict=True))
    shape = [sizes.get(letter) or int(g.rng.integers(1, 6)) for letter in terms[1]]
    if g.rng.integers(2):
        return g.node("Einsum", [x, g.normal(*shape)], equation=equation)
    other = g.node("Tile", [g.node("ReduceMean", [x, g.ints(*range(g.rank(x)))]), g.ints(*[1] * g.rank(x))])
    other = g.node("Reshape", [other, g.ints(*[1] * len(shape))])
    return g.node("Einsum", [x, g.node("Add", [g.node("Expand", [other, g.ints(*shape)]), g.normal(*shape)])], equation=equation)


def _concat(g: ViewGraph, x: str) -> str:
    axis = g.axis(x)
    shape = list(g.shape(x))
    others = [x, g.node("Neg", [x])]
    if g.rng.integers(2):
        shape[axis] = int(g.rng.integers(1, 4))
        others.append(g.normal(*shape))
    return g.node("Concat", [others[i] for i in g.rng.permutation(len(others))], axis=axis)


def _softmax(g: ViewGraph, x: str) -> str:
    return g.node("Softmax", [x], axis=g.axis(x))


def _batch_norm(g: ViewGraph, x: str) -> str:
    x = x if g.rank(x) > 1 else g.of_rank(x, 2)
    c = g.shape(x)[1]
    return g.node("BatchNormalization", [x, g.normal(c), g.normal(c), g.normal(c), g.normal(c, mean=2.0, std=0.1)])


def _instance_norm(g: ViewGraph, x: str) -> str:
    x = x if g.rank(x) > 2 else g.of_rank(x, 3)
    return g.node("InstanceNormalization", [x, g.normal(g.shape(x)[1]), g.normal(g.shape(x)[1])], epsilon=0.1)


def _group_norm(g: ViewGraph, x: str) -> str:
    g.opset = 21
    x = x if g.rank(x) > 2 else g.of_rank(x, 3)
    c = g.shape(x)[1]
    groups = int(g.one_of(*[d for d in range(1, c + 1) if c % d == 0]))
    y = g.node("GroupNormalization", [x, g.normal(c), g.normal(c)], num_groups=groups, epsilon=0.1)
    g.types[y] = g.types[x]  # onnx has no rule
    return y


def _gelu(g: ViewGraph, x: str) -> str:
    g.opset = 21
    return g.node("Gelu", [x], approximate=str(g.one_of("none", "tanh")))


def _layer_norm(g: ViewGraph, x: str) -> str:
    axis = g.axis(x) if g.rng.integers(3) == 0 else -1
    shape = g.shape(x)[axis % g.rank(x) :]
    return g.node("LayerNormalization", [x, g.normal(*shape), g.normal(*shape)], axis=axis, epsilon=0.1)


def _binary(op: str) -> Maker:
    def make(g: ViewGraph, x: str) -> str:
        kind = g.rng.integers(4)
        if kind == 0:  # of two that are computed, one of them reduced over some axes
            other = g.node("ReduceMax", [x, g.ints(*g.axes(x))], keepdims=1)
        elif kind == 1:
            other = g.node("Neg", [x])
        else:
            other = g.constant_beside(x)
        other = g.node("Add", [g.node("Abs", [other]), g.constant(np.array(1, np.float32))]) if op == "Div" and kind < 2 else other
        return g.node(op, [x, other] if g.rng.integers(2) and (op != "Div" or kind < 2) else [other, x] if op != "Div" else [x, other])

    return make


def _clip(g: ViewGraph, x: str) -> str:
    return g.node("Clip", [x, g.constant(np.array(-0.5, np.float32)), g.constant(np.array(0.75, np.float32))])


def _prelu(g: ViewGraph, x: str) -> str:
    shape = g.shape(g.constant_beside(x))[-g.rank(x) :]
    return g.node("PRelu", [x, g.normal(*shape)])


def _pow(g: ViewGraph, x: str) -> str:
    return g.node("Pow", [x, g.constant(np.full((1,) * int(g.one_of(0, 0, 1, 4)), g.one_of(2, 3), np.float32))])


def _reduce(op: str) -> Maker:
    def make(g: ViewGraph, x: str) -> str:
        keep = int(g.rng.integers(2))
        if op == "ReduceLogSum":
            x = g.node("Abs", [x])
            x = g.node("Add", [x, g.constant(np.array(1, np.float32))])
        axes = [] if g.rng.integers(8) == 0 else g.axes(x)
        if keep == 0 and len(axes or g.shape(x)) == g.rank(x):
            keep = 1  # else a number without axes
        return g.node(op, [x, *([g.ints(*axes)] if axes else [])], keepdims=keep)

    return make


def _pool(op: str) -> Maker:
    def make(g: ViewGraph, x: str) -> str:
        x = _image(g, x)
        kernel = [int(g.rng.integers(1, min(4, size + 1))) for size in g.shape(x)[2:]]
        values = _window(g, x, kernel, dilated=False)
        more = {"count_include_pad": int(g.rng.integers(2))} if op == "AveragePool" else {}
        return g.node(op, [x], kernel_shape=kernel, **values, **more)

    return make


def _pad(g: ViewGraph, x: str) -> str:
    rank = g.rank(x)
    mode = str(g.one_of("constant", "constant", "edge", "reflect"))
    most = [1 if mode == "constant" else min(1, size - 1) for size in g.shape(x)]
    some = int(g.rng.integers(3))  # 0: pads of nothing
    pads = [int(g.rng.integers(most[i % rank] + 1)) if some and g.rng.integers(2) else 0 for i in range(2 * rank)]
    return g.node("Pad", [x, g.ints(*pads), *([g.constant(np.array(1.5, np.float32))] if mode == "constant" else [])], mode=mode)


def _resize(g: ViewGraph, x: str) -> str:
    rank = g.rank(x)
    scales = [1.0] * rank
    for axis in g.rng.permutation(rank)[: int(g.one_of(1, 1, 2))]:
        scales[axis] = 2.0
    mode = str(g.one_of("nearest", "linear")) if rank in (3, 4) and scales[:2] == [1.0, 1.0] else "nearest"
    return g.node("Resize", [x, "", g.constant(np.array(scales, np.float32))], mode=mode)


def _depth_to_space(g: ViewGraph, x: str) -> str:
    x = g.of_rank(x, 4)
    block = 2 if g.shape(x)[1] % 4 == 0 else 1
    return g.node("DepthToSpace", [x], blocksize=block, mode=str(g.one_of("DCR", "CRD")))


def _global(op: str) -> Maker:
    return lambda g, x: g.node(op, [g.of_rank(x, int(g.one_of(3, 4, 5)))])


def _lrn(g: ViewGraph, x: str) -> str:
    return g.node("LRN", [g.of_rank(x, 4)], size=3, alpha=0.5)


def _positive(op: str) -> Maker:
    def make(g: ViewGraph, x: str) -> str:
        return g.node(op, [g.node("Add", [g.node("Abs", [x]), g.constant(np.array(0.5, np.float32))])])

    return make


def _plain(op: str) -> Maker:
    return lambda g, x: g.node(op, [x])


_ONE_TO_ONE = (
    "Abs", "Celu", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Neg", "Relu", "Selu", "Sigmoid", "Softplus",
    "Softsign", "Tanh",
)  # fmt: skip
CASES: dict[str, Maker] = {
    "AveragePool": _pool("AveragePool"),
    "BatchNormalization": _batch_norm,
    "Cast": lambda g, x: g.node("Cast", [x], to=TensorProto.FLOAT),
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": _depth_to_space,
    "Dropout": _plain("Dropout"),
    "Einsum": _einsum,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global("GlobalAveragePool"),
    "GlobalMaxPool": _global("GlobalMaxPool"),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "MatMul": _matmul,
    "MaxPool": _pool("MaxPool"),
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": _pow,
    "Resize": _resize,
    "Softmax": _softmax,
    "SpaceToDepth": lambda g, x: g.node("SpaceToDepth", [g.of_rank(x, 4)], blocksize=1),
    **{op: _binary(op) for op in ("Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum")},
    **{op: _plain(op) for op in _ONE_TO_ONE},
    **{op: _positive(op) for op in ("Log", "Reciprocal", "Sqrt")},
    **{
        op: _reduce(op)
        for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare")
    },
    "Where": _where,
    **VIEWS,
}


def random_input(g: ViewGraph) -> str:
    while True:
        shape = [int(g.one_of(*SIZES)) for _ in range(int(g.rng.integers(1, 6)))]
        if math.prod(shape) <= MOST_VALUES:
            return g.input(shape)


def random_views(g: ViewGraph, x: str, most: int) -> str:
    for _ in range(int(g.rng.integers(most + 1))):
        name = str(g.one_of(*VIEWS))
        x = VIEWS[name](g, x)
    return x


def view_graph(case: str, seed: int) -> ModelProto:
    """Views, the operator, views; something is computed in front of them or not, and now and then another operator is behind."""
    g = ViewGraph(np.random.default_rng([seed, sum(map(ord, case))]))
    x = random_input(g)
    if g.rng.integers(2):
        x = g.node("Relu" if g.rng.integers(2) else "Neg", [x])
    x = random_views(g, x, 3)
    found = [CASES[case](g, x)]
    y = random_views(g, found[0], 2)
    if g.rng.integers(3) == 0:
        y = CASES[str(g.one_of(*CASES))](g, y)
        y = random_views(g, y, 1)
    found = [y, *(found if g.rng.integers(4) == 0 else [])]
    made = {name for node in g.nodes for name in node.output}
    if not made.issuperset(found):
        return view_graph(case, seed + 1_000_003)
    return g.model(found)


def branched_graph(seed: int) -> ModelProto:
    """Three to eight operators, each on any tensor so far; sums, products and Concat of two that fit; several outputs."""
    g = ViewGraph(np.random.default_rng([7, seed]))
    tensors = [random_input(g)]
    if g.rng.integers(3) == 0:  # a second input of a similar shape
        shape = list(g.shape(tensors[0]))
        shape[int(g.rng.integers(len(shape)))] = int(g.one_of(1, 2, 3))
        tensors.append(g.input(shape))
    for _ in range(int(g.rng.integers(3, 9))):
        x = str(g.one_of(*tensors[-4:]))
        fits = [(a, b) for a in tensors for b in tensors if a != b and _broadcast(g.shape(a), g.shape(b))]
        kind = g.rng.integers(4)
        if kind == 0 and fits:
            made = g.node(str(g.one_of("Add", "Mul", "Sub", "Max")), list(fits[int(g.rng.integers(len(fits)))]))
        elif kind == 1:
            made = _joined(g, tensors)
        elif kind == 2:
            made = VIEWS[str(g.one_of(*VIEWS))](g, x)
        else:
            made = CASES[str(g.one_of(*CASES))](g, x)
        if made not in tensors and math.prod(g.shape(made)) < 4 * MOST_VALUES:
            tensors.append(made)
    made = [name for name in tensors if name not in g.inputs]
    if not made:
        return branched_graph(seed + 1_000_003)
    return g.model([made[-1], *(name for name in made[:-1] if g.rng.integers(4) == 0)])


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(p == q or 1 in (p, q) for p, q in zip(reversed(a), reversed(b), strict=False))


def _joined(g: ViewGraph, tensors: Sequence[str]) -> str:
    """Concat of two along an axis in which alone they differ, or of one twice."""
    x = tensors[int(g.rng.integers(len(tensors)))]
    axis = g.axis(x) % g.rank(x)
    alike = [
        t
        for t in tensors
        if g.rank(t) == g.rank(x) and all(i == axis or p == q for i, (p, q) in enumerate(zip(g.shape(t), g.shape(x), strict=True)))
    ]
    return g.node("Concat", [x, str(g.one_of(*alike))], axis=axis)


_MOVES = frozenset(VIEWS) | {"DepthToSpace", "GlobalMaxPool", "MaxPool", "ReduceMax"}  # of which onnxruntime makes operators on integers


def quantised(model: ModelProto, values: dict[str, Array], rng: np.random.Generator) -> ModelProto:
    """A QuantizeLinear and a DequantizeLinear behind every computed tensor of floats, constants as integers.

    values: of all tensors, whose ranges say the scales.  What only moves values keeps the scale of its input.
    """
    dtype = np.uint8 if rng.integers(2) else np.int8
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:], copy.graph.initializer[:]
    scale_of: dict[str, tuple[str, str]] = {}
    renamed: dict[str, str] = {}
    limits = np.iinfo(dtype)

    def scaled(name: str, array: Array) -> tuple[str, str]:
        low, high = min(0.0, float(array.min())), max(0.0, float(array.max()))
        scale = np.float32(max(high - low, 1e-2) / 255)
        zero = int(np.clip(round(limits.min - low / scale), limits.min, limits.max))
        for suffix, value in ((".scale", scale), (".zero", np.asarray(zero, dtype))):
            copy.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name + suffix))
        return f"{name}.scale", f"{name}.zero"

    def between(name: str, pair: tuple[str, str]) -> None:
        scale_of[name], renamed[name] = pair, f"{name}.dq"
        copy.graph.node.append(helper.make_node("QuantizeLinear", [name, *pair], [f"{name}.q"]))
        copy.graph.node.append(helper.make_node("DequantizeLinear", [f"{name}.q", *pair], [f"{name}.dq"]))

    # a bias would have to have the scale of sums
    as_they_are = {node.input[2] for node in model.graph.node if node.op_type in ("Conv", "Gemm", "Resize") and len(node.input) > 2}
    for item in model.graph.input:
        between(item.name, scaled(item.name, values[item.name]))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype != np.float32 or array.size < 2 or tensor.name in as_they_are:
            copy.graph.initializer.append(tensor)
            continue
        scale, zero = scaled(tensor.name, array)
        known = {item.name: numpy_helper.to_array(item) for item in copy.graph.initializer if item.name in (scale, zero)}
        integers = np.clip(np.rint(array / known[scale]) + known[zero].astype(np.float32), limits.min, limits.max).astype(dtype)
        copy.graph.initializer.append(numpy_helper.from_array(integers, f"{tensor.name}.q"))
        copy.graph.node.append(helper.make_node("DequantizeLinear", [f"{tensor.name}.q", scale, zero], [f"{tensor.name}.dq"]))
        renamed[tensor.name] = f"{tensor.name}.dq"
    outputs = {item.name for item in model.graph.output}
    for node in model.graph.node:
        mine = copy.graph.node.add()
        mine.CopyFrom(node)
        mine.input[:] = [renamed.get(name, name) for name in node.input]
        for i, name in enumerate(node.output):
            if values[name].dtype != np.float32:
                continue
            if name in outputs:  # the name is that of what is dequantised
                mine.output[i] = f"{name}.raw"
            moved = node.op_type in _MOVES and node.input[0] in scale_of
            pair = scale_of[node.input[0]] if moved else scaled(name, values[name])
            between(mine.output[i], pair)
            if name in outputs:
                copy.graph.node[-1].output[0] = name
                renamed[name] = name
            scale_of[name] = pair
    names = {item.name for item in copy.graph.initializer}
    kept = {item.name: item for item in copy.graph.initializer}
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept[name] for name in sorted(names))
    return copy
