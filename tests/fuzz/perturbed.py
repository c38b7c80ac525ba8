"""Does rounding explain how far a result is off?  The model with every tensor moved by what its type may round, several times.

What `tuner.checks.values` allows is a multiple of a few samples of rounding.  Ill-conditioned graphs move further: here every tensor that a
node makes is moved, whether the NPU stores it or not, and integers by a step.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from simulator.exact_onnxruntime import session_options
from simulator.npu.parts import DataType
from tests.fuzz.builder import Array, Sample
from tuner.checks.reference_body import types_of
from tuner.checks.values import FACTOR

SAMPLES = 8
_FAST, _SIZE = "tilefarm.fast", "tilefarm.size"
# relative: some roundings of a value in the type that an operator computes in
_MOVED = {DataType.float16: 2.0**-10, DataType.float32: 2.0**-21}


def rounding_explains(sample: Sample, name: str, made: Array, dtype: DataType) -> bool:
    """Whether `made`, of tensor `name`, is no further from onnxruntime's value than `FACTOR` times what moves do to it."""
    if not np.isfinite(made.astype(np.float64)).all():
        return False
    exact, *moved = _run(sample, name, _MOVED[dtype])
    if exact.shape != made.shape:
        return False
    off = float(np.abs(made.astype(np.float64) - exact).max(initial=0.0))
    return off <= FACTOR * max(float(np.abs(one - exact).max(initial=0.0)) for one in moved)


def _run(sample: Sample, name: str, relative: float) -> list[Array]:
    """float64: a tensor as it is, then of moved runs."""
    model, noises = _with_moves(sample.model, relative)
    if name not in {port.name for port in model.graph.output}:
        model.graph.output.append(helper.make_empty_tensor_value_info(name))
    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = []
    for k in range(SAMPLES + 1):
        rng = np.random.default_rng(k)
        moves = {noise: np.array(rng.uniform(-1, 1) if k else 0.0, np.float32) for noise in noises}
        (value,) = session.run([name], {**sample.feeds, **moves})
        found.append(value.astype(np.float64))
    return found


def _with_moves(model: ModelProto, relative: float) -> tuple[ModelProto, list[str]]:
    """Every float that a node makes is x + x * size * wave, and what is quantised x + step * wave; the wave is noise * sin(97 x)."""
    copy, noises = ModelProto(), list[str]()
    copy.CopyFrom(model)
    types = types_of(model)
    nodes = list[NodeProto]()

    def moved(raw: str, result: str, size: list[str]) -> None:
        noise = f"noise.{result}"
        noises.append(noise)
        factors = [f"wave.{result}", noise, *size]
        nodes.append(helper.make_node("Mul", [raw, _FAST], [f"fast.{result}"]))
        nodes.append(helper.make_node("Sin", [f"fast.{result}"], [f"wave.{result}"]))
        for k, factor in enumerate(factors[1:]):
            nodes.append(helper.make_node("Mul", [factors[0] if k == 0 else f"part{k}.{result}", factor], [f"part{k + 1}.{result}"]))
        nodes.append(helper.make_node("Add", [raw, f"part{len(size) + 1}.{result}"], [result]))

    for node in copy.graph.node:
        if node.op_type == "QuantizeLinear":
            result = f"moved.{node.output[0]}"
            moved(node.input[0], result, [node.input[1]])
            node.input[0] = result
        nodes.append(node)
        for at, name in enumerate(node.output):
            if types.get(name) == TensorProto.FLOAT and node.op_type != "DequantizeLinear":
                node.output[at] = f"raw.{name}"
                moved(f"raw.{name}", name, [f"raw.{name}", _SIZE])
    kept = type(copy.graph)(node=nodes)
    del copy.graph.node[:]
    copy.graph.node.extend(kept.node)
    copy.graph.input.extend(helper.make_tensor_value_info(noise, TensorProto.FLOAT, []) for noise in noises)
    copy.graph.initializer.extend(numpy_helper.from_array(np.array(value, np.float32), key) for key, value in ((_FAST, 97.0), (_SIZE, relative)))
    return copy, noises
