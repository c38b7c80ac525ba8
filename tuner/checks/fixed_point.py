"""The reference of machines that round in fixed point: a compiled file with its pieces computed by formulas, and the host as it is.

onnxruntime has no such rounding, so what it makes of the same model differs in steps.  Pieces of such machines hold integers alone, so
formulas say every bit of them, and the host computes the same of the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, NodeProto, helper

from compiler.frontend.load import load
from compiler.frontend.lower import lower
from compiler.ir.graph import Graph
from compiler.ir.interpret import evaluate
from compiler.ir.operators import QuantisedConv, QuantisedMatMul
from simulator.compiled import CompiledPiece
from simulator.npu.program import DdrBuffer
from simulator.onnx_names import names_read
from simulator.session import InferenceSession
from tuner.checks.reference import Reference
from tuner.checks.reference_body import body_of

Array = NDArray[Any]
WHOSE = "those of TFLite's rounding"


def in_fixed_point(graph: Graph) -> Graph:
    """The same with products whose sums become integers by `compiler.ir.quantised.fixed_point`."""
    products = (QuantisedConv, QuantisedMatMul)
    return replace(graph, operators=tuple(replace(op, fixed_point=True) if isinstance(op, products) else op for op in graph.operators))


def referred(expected: Reference, session: InferenceSession, body: Path, feeds: Mapping[str, ArrayLike]) -> Reference:
    """expected, with the values of a machine's own rounding where it rounds in fixed point.

    body: the compiled file, or the plain model where that has none.  Raises as `compiler.frontend.load`.
    """
    if session.compiled.machine.rounding == "float":
        return expected
    values = {**expected.values, **_Formulas(session, body).every_value(feeds)}
    return replace(expected, values=values, whose=WHOSE)


class _Formulas(InferenceSession):
    """A session in which formulas stand for the programs."""

    def __init__(self, session: InferenceSession, body: Path) -> None:
        self.__dict__.update(session.__dict__)
        self._profile = None
        model = onnx.load(body)
        body_of(model)
        self._graphs = {piece.name: in_fixed_point(self._graph(piece, model)) for piece in self.compiled.pieces}

    def every_value(self, feeds: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """What passes between host and pieces, and the outputs."""
        return self._run(feeds, self.levels[0], {})

    def _execute(self, piece: CompiledPiece, level: str, values: Mapping[str, ArrayLike]) -> dict[str, Array]:
        memory = piece.container.memory
        given = {buffer.name: self._checked_array(buffer, values) for buffer in memory.of_kind("input")}
        made = evaluate(self._graphs[piece.name], given)
        return {buffer.name: made[buffer.name].astype(self._dtype(buffer), copy=False) for buffer in memory.of_kind("output")}

    def _graph(self, piece: CompiledPiece, model: ModelProto) -> Graph:
        """The part of a model between inputs and outputs of a piece."""
        memory = piece.container.memory
        inputs, outputs = memory.of_kind("input"), memory.of_kind("output")
        found = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
        found.graph.name = piece.name
        nodes = _between(model.graph.node, {buffer.name for buffer in inputs}, {buffer.name for buffer in outputs})
        found.graph.node.extend(nodes)
        used = names_read(nodes)
        found.graph.initializer.extend(item for item in model.graph.initializer if item.name in used)
        for ports, buffers in ((found.graph.input, inputs), (found.graph.output, outputs)):
            ports.extend(self._port(buffer) for buffer in buffers)
        skeleton, data = load(found, where=piece.name)
        return lower(skeleton, data=data)

    def _port(self, buffer: DdrBuffer) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(buffer.name, helper.np_dtype_to_tensor_dtype(np.dtype(self._dtype(buffer))), buffer.onnx_shape)


def _between(nodes: Iterable[NodeProto], inputs: set[str], outputs: set[str]) -> list[NodeProto]:
    """Those that outputs need of inputs, in their order."""
    wanted, found = set(outputs), list[NodeProto]()
    for node in reversed(list(nodes)):
        if wanted & (set(node.output) - inputs):
            wanted |= names_read([node]) - inputs
            found.append(node)
    return found[::-1]
