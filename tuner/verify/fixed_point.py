"""Reference for machines with fixed-point rounding: the pieces of a compiled file by formulas, the host as it is.

onnxruntime has no such rounding, so its values differ by steps.  Pieces of such machines contain only integers, so formulas give every bit
of them, and the host computes the same from the same inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from compiler.frontend.frames import frame_count
from compiler.frontend.lower import lower
from compiler.frontend.onnx_io.load import load
from compiler.ir.frames import with_frames
from compiler.ir.graph import Graph
from compiler.ir.interpret import evaluate
from compiler.ir.operators import QuantisedConv, QuantisedMatMul
from simulator.compiled import Compiled, CompiledPiece
from simulator.npu.program import DdrBuffer, MemoryMap
from simulator.onnx_names import names_read
from simulator.session import InferenceSession
from tuner.verify.reference import ReferenceValues
from tuner.verify.reference_body import expand_bodies

Array = NDArray[Any]
WHOSE = "those of TFLite's rounding"


def to_fixed_point(graph: Graph) -> Graph:
    """Graph with products whose sums become integers by `compiler.ir.quantised.fixed_point`."""
    products = (QuantisedConv, QuantisedMatMul)
    return replace(graph, operators=tuple(replace(op, fixed_point=True) if isinstance(op, products) else op for op in graph.operators))


def apply_fixed_point(
    expected: ReferenceValues, compiled: Compiled, file: Path, feeds: Mapping[str, ArrayLike], body: Path | None = None
) -> ReferenceValues:
    """Reference values, replaced by the machine's own rounding where it rounds in fixed point.

    compiled: content of `file`.  body: the plain model, if `file` has none.  Raises as `compiler.frontend.onnx_io.load`.
    """
    if compiled.machine.rounding == "float":
        return expected
    session = InferenceSession(file, compute=_Formulas(compiled, body or file))
    return replace(expected, values={**expected.values, **session.values(feeds, {}, compiled.levels[0])}, whose=WHOSE)


class _Formulas:
    """Outputs of a compiled file's pieces by formulas."""

    def __init__(self, compiled: Compiled, body: Path) -> None:
        model = onnx.load(body)
        frames = frame_count(model)
        expand_bodies(model)
        self._graphs = {piece.name: to_fixed_point(_graph(piece, model, frames)) for piece in compiled.pieces}

    def __call__(self, piece: CompiledPiece, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return evaluate(self._graphs[piece.name], inputs)


def _graph(piece: CompiledPiece, model: ModelProto, frames: int) -> Graph:
    """Graph of one piece: the part of the model between its inputs and outputs, with as many frames as the piece."""
    memory = piece.container.memory
    inputs, outputs = memory.of_kind("input"), memory.of_kind("output")
    part = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.name = piece.name
    nodes = nodes_between(model.graph.node, {buffer.name for buffer in inputs}, {buffer.name for buffer in outputs})
    part.graph.node.extend(nodes)
    used = names_read(nodes)
    part.graph.initializer.extend(item for item in model.graph.initializer if item.name in used)
    for ports, buffers in ((part.graph.input, inputs), (part.graph.output, outputs)):
        ports.extend(_port(buffer, memory, frames) for buffer in buffers)
    skeleton, data = load(part, where=piece.name)
    return with_frames(lower(skeleton, data=data), frames)


def _port(buffer: DdrBuffer, memory: MemoryMap, frames: int) -> ValueInfoProto:
    """Model port of one frame for a buffer."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(memory.type_of(buffer).storage))
    shape = buffer.onnx_shape
    return helper.make_tensor_value_info(buffer.name, kind, (shape[0] // frames, *shape[1:]) if shape else ())


def nodes_between(nodes: Iterable[NodeProto], inputs: set[str], outputs: set[str]) -> list[NodeProto]:
    """Nodes on the way from inputs to outputs, in their order."""
    wanted_tensors, needed = set(outputs), list[NodeProto]()
    for node in reversed(list(nodes)):
        if wanted_tensors & (set(node.output) - inputs):
            wanted_tensors |= names_read([node]) - inputs
            needed.append(node)
    return needed[::-1]
