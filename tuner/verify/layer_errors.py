"""Errors of the tensors of a model on the NPU against float32 on onnxruntime, and the operator that adds most of them.

The file's body is compiled anew, layer by layer, with every tensor that the host can receive as an output, and runs twice: once from the
inputs of the model on, so errors add up; once with each operator on the reference's own inputs, rounded as they are stored.  A fused
program rounds no more than this one.

The reference of a quantised model (QDQ) has none of its activations quantised: its QuantizeLinear and DequantizeLinear nodes pass values
on, and integers are compared by the numbers that they stand for.  Weights have the values of the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from compiler.build import default_by_level
from simulator.compiled import Compiled
from simulator.npu.errors import BadInputError, TilefarmError
from simulator.onnx_names import refill
from simulator.session import InferenceSession
from tuner.verify.body_parts import BodyParts
from tuner.verify.reference import StoredTensors, run_reference

Array = NDArray[Any]
_GIVEN = "tilefarm.given."


class TensorError(NamedTuple):
    """Distance of a tensor from its reference.  largest: max|out - ref| / max|ref|.  sqnr_db: of signal to noise over all values."""

    largest: float
    sqnr_db: float

    @classmethod
    def of(cls, out: Array, reference: Array) -> TensorError:
        actual, ideal = out.astype(np.float64), reference.astype(np.float64)
        with np.errstate(invalid="ignore"):  # inf - inf
            noise = np.abs(actual - ideal)
        signal, power = float((ideal**2).sum()), float((noise**2).sum())
        sqnr_db = np.inf if power == 0 else 10 * np.log10(signal / power) if signal else -np.inf
        return cls(float(noise.max(initial=0.0)) / (float(np.abs(ideal).max(initial=0.0)) or 1.0), float(sqnr_db))


@dataclass(frozen=True)
class LayerError:
    """Errors of one tensor.  operator: its kind and name.  through: from the inputs of the model on.  isolated: of the operator on exact
    inputs."""

    operator: str
    tensor: str
    through: TensorError
    isolated: TensorError


class _Quantisation(NamedTuple):
    """Quantisation of a tensor of integers: one scale and zero point, or one for each index of `axis`."""

    scale: Array
    zero: Array
    axis: int

    def floats(self, integers: Array) -> Array:
        scale, zero = self._along(integers.ndim)
        return (integers.astype(np.float64) - zero) * scale

    def integers(self, floats: Array) -> Array:
        limits, (scale, zero) = np.iinfo(self.zero.dtype), self._along(floats.ndim)
        return np.clip(np.rint(floats / scale) + zero, limits.min, limits.max).astype(self.zero.dtype)

    def _along(self, rank: int) -> tuple[Array, Array]:
        shape = [1] * rank
        if self.scale.size > 1:
            shape[self.axis] = self.scale.size
        return self.scale.reshape(shape).astype(np.float64), self.zero.reshape(shape).astype(np.float64)


def layer_errors(body: Path, compiled: Compiled, feeds: Mapping[str, Array], level: str) -> tuple[LayerError, ...]:
    """Errors of all tensors of the NPU that the host can receive, in graph order.  body: a file with the model.

    Raises `BadInputError` for a body that runs several frames, and for one whose operators cannot be compiled one by one.
    """
    parts = BodyParts(body, compiled, level)
    if parts.source.frames > 1:
        raise BadInputError(f"--layers: {body} runs {parts.source.frames} frames; expected a file compiled without --frames")
    reference, quantised = _without_quantisation(parts.up_to(parts.names))
    with tempfile.TemporaryDirectory(prefix="tilefarm-") as name:
        folder = Path(name)
        onnx.save(reference, folder / "reference.onnx")
        ideal = run_reference(folder / "reference.onnx", feeds, StoredTensors()).values
        given = {
            _GIVEN + tensor: quantised[tensor].integers(ideal[tensor]) if tensor in quantised else ideal[tensor] for tensor in parts.names
        }
        try:
            through = _run(parts, parts.up_to(parts.names), feeds, folder / "through.onnx")
            isolated = _run(parts, _apart(parts), {**feeds, **given}, folder / "alone.onnx")
        except TilefarmError as refusal:
            raise BadInputError(f"--layers: operators of {body} cannot run one by one: {refusal}") from None

    def compare(outputs: Mapping[str, Array], tensor: str) -> TensorError:
        out = outputs[tensor]
        return TensorError.of(quantised[tensor].floats(out) if tensor in quantised else out, ideal[tensor])

    return tuple(LayerError(parts.makers[tensor], tensor, compare(through, tensor), compare(isolated, tensor)) for tensor in parts.names)


def worst_layer(errors: Sequence[LayerError]) -> LayerError:
    """Operator that adds most: the least SQNR on exact inputs; the first of equals."""
    return min(errors, key=lambda error: -np.inf if np.isnan(error.isolated.sqnr_db) else error.isolated.sqnr_db)


def _run(parts: BodyParts, part: ModelProto, feeds: Mapping[str, Array], out: Path) -> dict[str, Array]:
    parts.compile(part, default_by_level, out)
    session = InferenceSession(out)
    names, ports = [port.name for port in session.get_outputs()], {port.name for port in session.get_inputs()}
    fed = {name: value for name, value in feeds.items() if name in ports}
    return dict(zip(names, session.run(names, fed, level=parts.level), strict=True))


def _apart(parts: BodyParts) -> ModelProto:
    """Model whose operators read given tensors in place of other operators' results."""
    part, given = parts.up_to(parts.names), dict[str, ValueInfoProto]()
    for node in part.graph.node:
        for i, name in enumerate(node.input):
            if name in parts.names:
                given[name] = deepcopy(parts.types[name])
                given[name].name = node.input[i] = _GIVEN + name
    part.graph.input.extend(given.values())
    read = {name for node in part.graph.node for name in node.input}
    refill(part.graph.input, [deepcopy(port) for port in part.graph.input if port.name in read])
    return part


def _without_quantisation(model: ModelProto) -> tuple[ModelProto, dict[str, _Quantisation]]:
    """Model in float32, and the quantisation of its tensors of integers; the model as it is where operators compute on integers."""
    constants = {item.name: item for item in model.graph.initializer}
    part, quantised = deepcopy(model), dict[str, _Quantisation]()
    for node in part.graph.node:
        if node.op_type == "QuantizeLinear" and all(name in constants for name in node.input[1:]):
            quantised[node.output[0]] = _quantisation(node, constants)
            _pass_on(node)
        elif node.op_type == "DequantizeLinear" and node.input[0] in quantised:
            _pass_on(node)
        elif any(name in quantised for name in node.input):
            if "Integer" in node.op_type or node.op_type.startswith(("QLinear", "Dynamic")):
                return model, {}
            quantised[node.output[0]] = quantised[node.input[0]]
    for item in (*part.graph.output, *part.graph.value_info):
        if item.name in quantised:
            item.type.tensor_type.elem_type = TensorProto.FLOAT
    return part, quantised


def _quantisation(node: NodeProto, constants: Mapping[str, TensorProto]) -> _Quantisation:
    scale = numpy_helper.to_array(constants[node.input[1]])
    zero = numpy_helper.to_array(constants[node.input[2]]) if len(node.input) > 2 else np.zeros(scale.shape, np.uint8)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    return _Quantisation(scale, zero, int(axis))


def _pass_on(node: NodeProto) -> None:
    node.op_type, node.domain = "Identity", ""
    del node.input[1:], node.attribute[:]
