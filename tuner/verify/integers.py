"""Integer tensors of a quantised model on onnxruntime, compared with the formulas.

The reference is the graph that onnxruntime itself makes of the model, by the options of `simulator.exact_onnxruntime`: it groups
QuantizeLinear and DequantizeLinear around an operator.  The graph is saved, its tensors become outputs, and every operator is computed by
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
from simulator.exact_onnxruntime import REFUSALS, exact_model, read_tensors
from simulator.npu.errors import BadInputError
from tuner.verify.integer_formulas import node_formula

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class NodeValues:
    """Node of the optimised graph with onnxruntime's inputs and outputs; None for a missing optional input."""

    node: NodeProto
    inputs: tuple[Array | None, ...]
    outputs: tuple[Array, ...]

    @property
    def is_quantised(self) -> bool:
        """Whether the node outputs int8, uint8 or int32, or reads 8-bit integers."""
        read = any(value is not None and value.dtype in (np.int8, np.uint8) for value in self.inputs)
        return read or any(value.dtype in (np.int8, np.uint8) for value in self.outputs)


@dataclass(frozen=True, eq=False)
class Integers:
    """Integer tensors of a run.  nodes: in the order of the optimised graph.  outputs: outputs of the model, by name."""

    nodes: tuple[NodeValues, ...]
    outputs: Mapping[str, Array]


@dataclass(frozen=True)
class Difference:
    """Comparison of one operator.  differing: number of different values among `count`; None without a formula."""

    name: str
    kind: str
    differing: int | None
    count: int


def isolated_integers(model: ModelProto, feeds: Mapping[str, Array]) -> Integers:
    """Run a model on onnxruntime and keep every tensor.  Raises BadInputError."""
    try:
        optimised = exact_model(model)
    except REFUSALS as error:
        raise BadInputError(f"onnxruntime cannot load the model: {one_line(error)}") from None
    graph = optimised.graph
    outputs = [item.name for item in graph.output]
    try:
        values = read_tensors(optimised, feeds, [*outputs, *(name for node in graph.node for name in node.output if name)])
    except REFUSALS as error:
        raise BadInputError(f"onnxruntime cannot run the model: {one_line(error)}") from None
    values |= {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    values |= {name: np.asarray(value) for name, value in feeds.items()}
    nodes = tuple(
        NodeValues(node, tuple(values[name] if name else None for name in node.input), tuple(values[name] for name in node.output if name))
        for node in graph.node
    )
    return Integers(nodes, {name: values[name] for name in outputs})


def compare_integers(integers: Integers) -> tuple[Difference, ...]:
    """Compare every operator on 8-bit integers with its formula on onnxruntime's own inputs.

    Raises BadInputError for inputs that the formulas reject.
    """
    records = []
    for computed in integers.nodes:
        if not computed.is_quantised:
            continue
        node, formula = computed.node, node_formula(computed.node)
        count = sum(value.size for value in computed.outputs)
        differing = None
        if formula is not None:
            computed_outputs = formula(computed.inputs)
            differing = sum(_differing(a, b) for a, b in zip(computed_outputs, computed.outputs, strict=True))
        records.append(Difference(node.name or node.output[0], node.op_type, differing, count))
    return tuple(records)


def _differing(computed: Array, reference: Array) -> int:
    """Number of different values; NaNs are equal."""
    if computed.shape != reference.shape or computed.dtype != reference.dtype:
        return reference.size
    return int(
        (computed != reference).sum() - (np.isnan(computed) & np.isnan(reference)).sum()
        if reference.dtype.kind == "f"
        else (computed != reference).sum()
    )


def summarise_differences(records: Sequence[Difference]) -> list[str]:
    """Line for each kind: operators, values, differing values."""
    kinds = Counter(record.kind for record in records)
    lines = []
    for kind, operators in sorted(kinds.items()):
        kind_records = [record for record in records if record.kind == kind]
        differing_counts = [record.differing for record in kind_records if record.differing is not None]
        verdict = f"{sum(differing_counts):,} differing" if len(differing_counts) == len(kind_records) else "no formula"
        lines.append(f"{kind}: {operators} operators, {sum(record.count for record in kind_records):,} values, {verdict}")
    return lines
