"""Does rounding explain how far a result is off?  The model with every tensor moved by what its type may round, several times.

What `tuner.verify.values` allows is a multiple of a few samples of rounding.  Ill-conditioned graphs move further: here every tensor that a
node makes is moved, whether the NPU stores it or not, and integers by a step.  A function or a sum is computed in steps, some of which are
near 1 where its value is near 0 (an exponential less 1, a mean that is taken off), so its value is moved by what rounds there as well.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from simulator.exact_onnxruntime import session_options
from simulator.npu.parts import DataType
from simulator.onnx_kinds import widen_model
from tests.fuzz.builder import Array, Sample, exact, values_of
from tuner.verify.reference_body import _LOST_BITS, tensor_types
from tuner.verify.values import FACTOR

SAMPLES = 16
_RELATIVE, _ONE = "fuzz.relative", "fuzz.one"
# relative: some roundings of a value in the type that an operator computes in
_MOVED = {DataType.float16: 2.0**-10, DataType.float32: 2.0**-21}


def rounding_explains(sample: Sample, name: str, made: Array, dtype: DataType) -> bool:
    """Whether `made`, of tensor `name`, is no further from onnxruntime's value than `FACTOR` times what moves do to it."""
    if not np.isfinite(made.astype(np.float64)).all():
        return False
    still, *moved = _run(sample, name, _MOVED[dtype])
    if still.shape != made.shape:
        return False
    off = float(np.abs(made.astype(np.float64) - still).max(initial=0.0))
    return off <= FACTOR * max(float(np.abs(one - still).max(initial=0.0)) for one in moved)


def _run(sample: Sample, name: str, relative: float) -> list[Array]:
    """float64: a tensor as it is in float32, then of moved runs."""
    wide = ModelProto()
    wide.CopyFrom(sample.model)
    widen_model(wide, (TensorProto.FLOAT16,))
    feeds = {key: value.astype(np.float32) if value.dtype == np.float16 else value for key, value in sample.feeds.items()}
    model, noises = _with_moves(wide, relative)
    names = [name for node in wide.graph.node for name in node.output if name]
    shapes = {key: value.shape for key, value in {**values_of(wide, feeds, names), **feeds}.items()}
    if name not in {port.name for port in model.graph.output}:
        model.graph.output.append(helper.make_empty_tensor_value_info(name))
    model.graph.input.extend(helper.make_tensor_value_info(noise, TensorProto.FLOAT, shapes[of]) for noise, of in noises.items())
    data = exact(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, session_options(group=False), providers=["CPUExecutionProvider"])
    found = []
    for k in range(SAMPLES + 1):
        rng = np.random.default_rng(k)
        moves = {noise: np.float32(k > 0) * rng.uniform(-1, 1, shapes[of]).astype(np.float32) for noise, of in noises.items()}
        (value,) = session.run([name], {**feeds, **{noise: np.asarray(each) for noise, each in moves.items()}})
        found.append(value.astype(np.float64))
    return found


def _with_moves(model: ModelProto, relative: float) -> tuple[ModelProto, dict[str, str]]:
    """Every float that goes in or that a node makes is x + x * relative * noise, of a function x + (|x| + 1) * relative * noise, and what
    is quantised x + step * noise.  Returns tensors of noise, each with the tensor whose shape it has, as well.
    """
    copy, nodes, noises, seen = ModelProto(), list[NodeProto](), dict[str, str](), dict[str, str]()
    copy.CopyFrom(model)
    types = tensor_types(model)

    def add(op: str, inputs: list[str], result: str) -> str:
        nodes.append(helper.make_node(op, inputs, [result]))
        return result

    def move(raw: str, result: str, size: str, of: str) -> None:
        noises[f"noise.{result}"] = of
        add("Add", [raw, add("Mul", [size, f"noise.{result}"], f"move.{result}")], result)

    def move_float(raw: str, result: str, of: str, function: bool) -> None:
        size = add("Add", [add("Abs", [raw], f"abs.{result}"), _ONE], f"more.{result}") if function else raw
        move(raw, result, add("Mul", [size, _RELATIVE], f"size.{result}"), of)

    for port in model.graph.input:
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            seen[port.name] = f"moved.{port.name}"
            move_float(port.name, seen[port.name], port.name, function=False)
    for node in copy.graph.node:
        read = node.input[0] if node.input else ""
        node.input[:] = [seen.get(name, name) for name in node.input]
        if node.op_type == "QuantizeLinear":
            result = f"moved.{node.output[0]}"
            move(node.input[0], result, node.input[1], read)
            node.input[0] = result
        nodes.append(node)
        for at, name in enumerate(node.output):
            if types.get(name) == TensorProto.FLOAT and node.op_type != "DequantizeLinear":
                node.output[at] = f"raw.{name}"
                move_float(f"raw.{name}", name, name, node.op_type in _LOST_BITS)
    kept = type(copy.graph)(node=nodes)
    del copy.graph.node[:]
    copy.graph.node.extend(kept.node)
    constants = {_RELATIVE: relative, _ONE: 1.0}
    copy.graph.initializer.extend(numpy_helper.from_array(np.array(value, np.float32), key) for key, value in constants.items())
    return copy, noises
