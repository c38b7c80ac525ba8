"""A random graph node by node: onnxruntime executes each as it is added, so shapes, values and scales are known to what is drawn next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from simulator.exact_onnxruntime import REFUSALS, exact_model, read_tensors

Array = NDArray[Any]
SIZES = (1, 2, 3, 4, 5, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40)
OPSETS = (9, 11, 13, 13, 17, 17, 18, 20, 21, 21, 22, 24)
MOST_VALUES, MOST_AXES = 6144, 5  # of a tensor
MOST, LEAST = 300.0, 1e-2  # the largest magnitude of a tensor's values: float16 holds sums of these, and does not lose them
MS = "com.microsoft"
_PRODUCTS = ("ConvInteger", "MatMulInteger", "QGemm", "QLinearConv", "QLinearMatMul")


class MisfitError(Exception):
    """What was drawn cannot be added to this graph."""


class Sample(NamedTuple):
    """A model and its inputs."""

    model: ModelProto
    feeds: dict[str, Array]


@cache
def schema_of(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """None where the opset has no such operator."""
    try:
        found = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


def divisors_of(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def port_of(name: str, value: Array) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def exact(model: ModelProto) -> ModelProto:
    """The same, with products of integers that are exact on every CPU."""
    return exact_model(model, group=False) if any(node.op_type in _PRODUCTS for node in model.graph.node) else model


def values_of(model: ModelProto, feeds: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
    """Tensors of a model by name, of the nodes as they are.  Raises one of `REFUSALS`."""
    names, exposed = list(names), ModelProto()
    exposed.CopyFrom(model)
    there = {port.name for port in model.graph.output}
    # outputs from the beginning: onnxruntime takes out what two casts cancel, whatever it may change
    exposed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(names) if name not in there)
    return read_tensors(exact(exposed), feeds, names)


def execute_nodes(nodes: Sequence[NodeProto], feeds: dict[str, Array], names: Sequence[str], opset: int) -> list[Array]:
    """Tensors by name, with no optimisation.  Raises one of `REFUSALS`."""
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in feeds.items()
    ]
    graph = helper.make_graph(nodes, "nodes", ports, [helper.make_empty_tensor_value_info(name) for name in names])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    found = values_of(helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds, names)
    return [found[name] for name in names]


def _check_value(value: Array, most: float) -> None:
    if value.ndim > MOST_AXES or not 0 < value.size <= MOST_VALUES:
        raise MisfitError
    if value.dtype.kind == "f" and most < np.inf and not LEAST <= float(np.abs(value).max(initial=0.0)) <= most:  # NaN is not
        raise MisfitError


class GraphBuilder:
    """values: of every tensor by name.  pool: float tensors that are no constants, in the order in which they were added.

    batch: of inputs, mostly.  views: what share of the nodes are views.  recent: how often a node reads what was made last.
    """

    def __init__(self, rng: np.random.Generator, opset: int) -> None:
        self.rng, self.opset = rng, opset
        self.batch = int(rng.choice((1, 1, 1, 1, 2, 3)))
        self.views, self.recent = float(rng.choice((0.1, 0.2, 0.4))), float(rng.choice((0.5, 0.7, 0.9)))
        self.values: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[NodeProto] = []
        self.pool: list[str] = []

    @contextmanager
    def whole_or_nothing(self) -> Iterator[None]:
        """What is added inside goes again where some of it cannot be added."""
        before = {key: copy(value) for key, value in vars(self).items() if isinstance(value, dict | list)}
        try:
            yield
        except (MisfitError, *REFUSALS):
            vars(self).update(before)

    # --- what is drawn ---------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choose(self, items: Sequence[Any]) -> Any:
        if not items:
            raise MisfitError
        return items[int(self.rng.integers(len(items)))]

    def integer(self, low: int, high: int) -> int:
        """Within [low, high]."""
        if high < low:
            raise MisfitError
        return int(self.rng.integers(low, high + 1))

    def draw_shape(self, rank: int) -> tuple[int, ...]:
        batch = self.batch if self.chance(0.9) else self.integer(1, 3)
        while True:
            shape = (batch, *(int(self.choose(SIZES)) for _ in range(rank - 1)))
            if math.prod(shape) <= MOST_VALUES:
                return shape

    def pick(self, fits: Callable[[str], bool] = lambda name: True) -> str:
        """A tensor of the pool, mostly one of the last."""
        found = [name for name in self.pool if fits(name)]
        return str(self.choose(found[-2:] if self.chance(self.recent) else found))

    def pick_rank(self, *ranks: int) -> str:
        """A tensor with so many axes, one of another as a view with so many."""
        if self.chance(0.8) and any(self.values[name].ndim in ranks for name in self.pool):
            return self.pick(lambda name: self.values[name].ndim in ranks)
        x, rank = self.pick(lambda name: self.values[name].ndim > 0), int(self.choose(ranks))
        shape = list(self.shape(x))
        while len(shape) > rank:
            at = self.integer(0, len(shape) - 2)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        while len(shape) < rank:
            shape.insert(self.integer(0, len(shape)), 1)
        return x if tuple(shape) == self.shape(x) else self.node("Reshape", [x], shape=shape)

    def pick_within(self, low: float, high: float) -> str:
        """A tensor with values within limits; one with others behind functions that bring them there."""
        x = self.pick()
        value = self.values[x]
        if low <= value.min(initial=low) and value.max(initial=high) <= high:
            return x
        x = self.node(str(self.choose(("Sigmoid", "HardSigmoid", "Sigmoid"))), [x])
        return self.node("Add", [x, self.constant(np.array(low + 0.1, np.float32))]) if low >= 0 else x

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def draw_some(self, **choices: Sequence[Any]) -> dict[str, Any]:
        """Attributes, each of them or none."""
        return {key: self.choose(values) for key, values in choices.items() if self.chance(0.6)}

    # --- what is added ---------------------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        return f"{prefix}{len(self.values)}"

    def input(self, shape: Sequence[int]) -> str:
        """A new input of the model."""
        name = self.name("x")
        self.values[name] = self.feeds[name] = self.rng.standard_normal(tuple(shape)).astype(np.float16).astype(np.float32)
        self.pool.append(name)
        return name

    def constant(self, array: Array) -> str:
        name = self.name("c")
        self.values[name] = self.constants[name] = array
        return name

    def draw_constant(self, shape: Sequence[int], std: float = 1.0, mean: float = 0.0) -> str:
        return self.constant(np.asarray(self.rng.standard_normal(tuple(shape)) * std + mean, np.float16).astype(np.float32))

    def draw_positive(self, shape: Sequence[int]) -> str:
        return self.constant(self.rng.uniform(0.5, 1.5, tuple(shape)).astype(np.float16).astype(np.float32))

    def node(self, op: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        return self.split(op, inputs, 1, domain, **attributes)[0]

    def split(self, op: str, inputs: Sequence[str], count: int, domain: str = "", **attributes: Any) -> list[str]:
        """Names of so many results.  Attributes that the opset has as inputs become such."""
        return self.add(op, self.read(op, inputs), count, domain, **attributes)

    def read(self, op: str, inputs: Sequence[str]) -> list[str]:
        """What a node reads of some tensors."""
        return list(inputs)

    def add(
        self, op: str, inputs: Sequence[str], count: int = 1, domain: str = "", most: float = MOST, **attributes: Any
    ) -> list[str]:  # fmt: skip
        """As `split`, of what is read as it is; with magnitudes of at most `most`, or with any."""
        given, left = list(inputs), dict[str, Any]()
        schema = None if domain else schema_of(op, self.opset)
        if schema is None and not domain:
            raise MisfitError
        for key, value in attributes.items():
            if schema is None or key in schema.attributes:
                left[key] = value
                continue
            at = [port.name for port in schema.inputs].index(key)
            array = np.asarray(value)
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
            given += [""] * (at + 1 - len(given))
            given[at] = self.constant(array)
        names = [f"t{len(self.values)}{part}" for part in (" abcdef"[1 : count + 1] if count > 1 else [""])]
        made = helper.make_node(op, given, names, domain=domain, **left)
        feeds = {name: self.values[name] for name in given if name}
        for name, value in zip(names, execute_nodes([made], feeds, names, self.opset), strict=True):
            _check_value(value, most)
            self.values[name] = value
            if value.dtype == np.float32:
                self.pool.append(name)
        self.nodes.append(made)
        return names

    # --- the whole -------------------------------------------------------------------------------------------------

    def sample(self, outputs: Sequence[str]) -> Sample:
        """The model with these outputs, and of its nodes and inputs what they need."""
        wanted, nodes = set(outputs), list[NodeProto]()
        for node in reversed(self.nodes):
            if wanted & set(node.output):
                nodes.insert(0, node)
                wanted |= set(node.input)
        feeds = {name: array for name, array in self.feeds.items() if name in wanted}
        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items() if name in wanted]
        if self.chance(0.1):
            nodes = [*(helper.make_node("Constant", [], [item.name], value=item) for item in constants), *nodes]
            constants = []
        graph = helper.make_graph(
            nodes, "fuzz", *([port_of(name, self.values[name]) for name in names] for names in (feeds, outputs)), constants
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == MS for node in nodes):
            opsets.append(helper.make_opsetid(MS, 1))
        return Sample(helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds)
