"""Tables of functions of one quantised tensor: onnxruntime evaluates the chain of float operators for all 256 integers.

A table is exact, whereas the same chain in float16 would sometimes be off by one.

onnxruntime runs in this process here, unlike for whole models.  A chain has only operators of `TABLE_OPERATORS` with constants of one
value, on 256 integers, so a model cannot make it slow or large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, OperatorSetIdProto, helper, numpy_helper

from simulator.onnx_names import names_read

# element-wise operators of one computed input; the other inputs are constants of one value
TABLE_OPERATORS = frozenset({
    "Abs", "Add", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Log", "Max", "Min", "Mish", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus",
    "Softsign", "Sqrt", "Sub", "Tanh", "ThresholdedRelu",
})  # fmt: skip
_TURNS = (0, 1, 5, 29)  # a vector kernel computes its last values by other code


def evaluate_table(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, NDArray[Any]],
    dtypes: tuple[int, int],
    opsets: Iterable[OperatorSetIdProto],
    ir_version: int,
    channels: int = 0,
) -> NDArray[Any] | None:
    """Table of a chain of nodes between two tensors of 8 bits: one result per integer, from the least integer on.

    dtypes: onnx types of both tensors.  channels: number of channels if nodes have values per channel; then the results are [channels,
    256].  None where onnxruntime refuses the nodes (a type or an opset without a kernel), or where a result depends on the position in the
    tensor: such a chain is computed in floats.  Other exceptions are bugs and propagate.
    """
    leading_axes = (1, channels, 1) if channels else ()  # axes before the axis of the integers
    graph = helper.make_graph(
        nodes, "table", [helper.make_tensor_value_info(nodes[0].input[0], dtypes[0], [*leading_axes, "n"])],
        [helper.make_tensor_value_info(nodes[-1].output[0], dtypes[1], [*leading_axes, "n"])],
        [numpy_helper.from_array(np.asarray(constants[name]), name) for name in sorted(names_read(nodes) & constants.keys())],
    )  # fmt: skip
    model = ModelProto(ir_version=ir_version, opset_import=opsets, graph=graph)
    table = _run(model.SerializeToString(deterministic=True), helper.tensor_dtype_to_np_dtype(dtypes[0]).name, leading_axes)
    return None if table is None else np.frombuffer(table, helper.tensor_dtype_to_np_dtype(dtypes[1])).reshape(*leading_axes[1:2], 256)


@lru_cache(maxsize=4096)
def _run(model: bytes, dtype: str, leading_axes: tuple[int, ...]) -> bytes | None:
    import onnxruntime  # imported only for models with such a chain

    from simulator.exact_onnxruntime import REFUSALS, session_options

    limits = np.iinfo(dtype)
    integers = np.broadcast_to(np.arange(limits.min, limits.max + 1).astype(dtype), (*leading_axes, 256))
    try:
        session = onnxruntime.InferenceSession(model, session_options(), providers=["CPUExecutionProvider"])
        (name,) = (port.name for port in session.get_inputs())
        results = [np.roll(session.run(None, {name: np.roll(integers, turn, -1)})[0], -turn, -1) for turn in _TURNS]
    except REFUSALS:
        return None
    return results[0].tobytes() if all(np.array_equal(results[0], turn_outputs) for turn_outputs in results[1:]) else None
