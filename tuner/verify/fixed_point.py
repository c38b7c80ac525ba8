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
from tuner.verify.reference_body import body_of

Array = NDArray[Any]
WHOSE = "those of TFLite's rounding"


def in_fixed_point(graph: Graph) -> Graph:
    """The same with products whose sums become integers by `compiler.ir.quantised.fixed_point`."""
    products = (QuantisedConv, QuantisedMatMul)
    return replace(graph, operators=tuple(replace(op, fixed_point=True) if isinstance(op, products) else op for op in graph.operators))


def referred(
    expected: ReferenceValues, compiled: Compiled, file: Path, feeds: Mapping[str, ArrayLike], body: Path | None = None
) -> ReferenceValues:
    """expected, with the values of a machine's own rounding where it rounds in fixed point.

    compiled: what file has.  body: the plain model, of a file that has none.  Raises as `compiler.frontend.onnx_io.load`.
    """
    if compiled.machine.rounding == "float":
        return expected
    session = InferenceSession(file, compute=_Formulas(compiled, body or file))
    return replace(expected, values={**expected.values, **session.values(feeds, {}, compiled.levels[0])}, whose=WHOSE)


class _Formulas:
    """What pieces of a compiled file make of their inputs."""

    def __init__(self, compiled: Compiled, body: Path) -> None:
        model = onnx.load(body)
        frames = frame_count(model)
        body_of(model)
        self._graphs = {piece.name: in_fixed_point(_graph(piece, model, frames)) for piece in compiled.pieces}

    def __call__(self, piece: CompiledPiece, given: Mapping[str, Array]) -> dict[str, Array]:
        return evaluate(self._graphs[piece.name], given)


def _graph(piece: CompiledPiece, model: ModelProto, frames: int) -> Graph:
    """The part of a model of one frame between inputs and outputs of a piece, of as many frames as the piece has."""
    memory = piece.container.memory
    inputs, outputs = memory.of_kind("input"), memory.of_kind("output")
    found = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    found.graph.name = piece.name
    nodes = between(model.graph.node, {buffer.name for buffer in inputs}, {buffer.name for buffer in outputs})
    found.graph.node.extend(nodes)
    used = names_read(nodes)
    found.graph.initializer.extend(item for item in model.graph.initializer if item.name in used)
    for ports, buffers in ((found.graph.input, inputs), (found.graph.output, outputs)):
        ports.extend(_port(buffer, memory, frames) for buffer in buffers)
    skeleton, data = load(found, where=piece.name)
    return with_frames(lower(skeleton, data=data), frames)


def _port(buffer: DdrBuffer, memory: MemoryMap, frames: int) -> ValueInfoProto:
    """Of one frame."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(memory.type_of(buffer).storage))
    shape = buffer.onnx_shape
    return helper.make_tensor_value_info(buffer.name, kind, (shape[0] // frames, *shape[1:]) if shape else ())


def between(nodes: Iterable[NodeProto], inputs: set[str], outputs: set[str]) -> list[NodeProto]:
    """Those that outputs need of inputs, in their order."""
    wanted, found = set(outputs), list[NodeProto]()
    for node in reversed(list(nodes)):
        if wanted & (set(node.output) - inputs):
            wanted |= names_read([node]) - inputs
            found.append(node)
    return found[::-1]
