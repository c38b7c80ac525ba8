"""What onnxruntime has in the integer tensors of a quantised model, and whether the formulas give the same.

The reference is the graph that onnxruntime itself makes of the model, by the options of `simulator.exact_onnxruntime`: it groups
QuantizeLinear and DequantizeLinear around an operator.  The graph is saved, its tensors are made outputs, and every operator is computed by
its formula from onnxruntime's own inputs.  Without the passes that move axes its tensors have the file's names and axes; the kernels are
the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from compiler.frontend.onnx_io.attributes import one_line
from simulator.exact_onnxruntime import REFUSALS, exact_model, tensors
from simulator.npu.errors import BadInputError
from tuner.verify.integer_formulas import formula_of

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Computed:
    """A node of the optimised graph, with what onnxruntime gave it and what it made of it; None for an optional input that is not there."""

    node: NodeProto
    inputs: tuple[Array | None, ...]
    outputs: tuple[Array, ...]

    @property
    def is_quantised(self) -> bool:
        """Whether it makes int8, uint8 or int32, or reads 8-bit integers."""
        read = any(value is not None and value.dtype in (np.int8, np.uint8) for value in self.inputs)
        return read or any(value.dtype in (np.int8, np.uint8) for value in self.outputs)


@dataclass(frozen=True, eq=False)
class Integers:
    """nodes: in the order of the optimised graph.  outputs: of the model, by name."""

    nodes: tuple[Computed, ...]
    outputs: Mapping[str, Array]


@dataclass(frozen=True)
class Difference:
    """differing: of `count` values of an operator's outputs; None where it has no formula."""

    name: str
    kind: str
    differing: int | None
    count: int


def integers_of(model: ModelProto, feeds: Mapping[str, Array]) -> Integers:
    """Run a model on onnxruntime and keep every tensor.  Raises BadInputError."""
    try:
        made = exact_model(model)
    except REFUSALS as error:
        raise BadInputError(f"onnxruntime cannot load the model: {one_line(error)}") from None
    graph = made.graph
    outputs = [item.name for item in graph.output]
    try:
        values = tensors(made, feeds, [*outputs, *(name for node in graph.node for name in node.output if name)])
    except REFUSALS as error:
        raise BadInputError(f"onnxruntime cannot run the model: {one_line(error)}") from None
    values |= {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    values |= {name: np.asarray(value) for name, value in feeds.items()}
    nodes = tuple(
        Computed(node, tuple(values[name] if name else None for name in node.input), tuple(values[name] for name in node.output if name))
        for node in graph.node
    )
    return Integers(nodes, {name: values[name] for name in outputs})


def differences(integers: Integers) -> tuple[Difference, ...]:
    """Every operator on 8-bit integers, by its formula from onnxruntime's own inputs.

    Raises BadInputError for what the formulas refuse.
    """
    out = []
    for computed in integers.nodes:
        if not computed.is_quantised:
            continue
        node, formula = computed.node, formula_of(computed.node)
        count = sum(value.size for value in computed.outputs)
        differing = None
        if formula is not None:
            mine = formula(computed.inputs)
            differing = sum(_differing(a, b) for a, b in zip(mine, computed.outputs, strict=True))
        out.append(Difference(node.name or node.output[0], node.op_type, differing, count))
    return tuple(out)


def _differing(mine: Array, theirs: Array) -> int:
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return theirs.size
    return int((mine != theirs).sum() - (np.isnan(mine) & np.isnan(theirs)).sum() if theirs.dtype.kind == "f" else (mine != theirs).sum())


def summary(found: Sequence[Difference]) -> list[str]:
    """A line for each kind: operators, values, differing values."""
    kinds = Counter(one.kind for one in found)
    out = []
    for kind, operators in sorted(kinds.items()):
        of_kind = [one for one in found if one.kind == kind]
        counted = [one.differing for one in of_kind if one.differing is not None]
        said = f"{sum(counted):,} differing" if len(counted) == len(of_kind) else "no formula"
        out.append(f"{kind}: {operators} operators, {sum(one.count for one in of_kind):,} values, {said}")
    return out
