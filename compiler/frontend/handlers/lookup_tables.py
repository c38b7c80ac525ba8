"""Functions of one quantised tensor by their 256 values, as onnxruntime computes them: chains of operators in floats between integers.

A table is exact where the same chain in float16 would be a step off now and then.

onnxruntime runs in this process here, unlike for whole models.  A chain is of operators in `ENUMERATED` with constants of one value, on 256
integers, so nothing of the file says how much memory or time it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, OperatorSetIdProto, helper, numpy_helper

from simulator.onnx_names import names_read

# value by value, of one computed input; what else they read are constants of one value
ENUMERATED = frozenset({
    "Abs", "Add", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Log", "Max", "Min", "Mish", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus",
    "Softsign", "Sqrt", "Sub", "Tanh", "ThresholdedRelu",
})  # fmt: skip
_TURNS = (0, 1, 5, 29)  # a vector kernel computes its last values by other code


def entries(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, NDArray[Any]],
    dtypes: tuple[int, int],
    opsets: Iterable[OperatorSetIdProto],
    ir_version: int,
    channels: int = 0,
) -> NDArray[Any] | None:
    """Results for every integer, the least first, of nodes that lead from one tensor of 8 bits to another.  dtypes: onnx's, of both.

    channels: of nodes that compute channel by channel; the results are [channels, 256] then.
    None where onnxruntime refuses them (a type or an opset without a kernel), or where a value depends on its place in a tensor: the
    chain is then computed in floats.  Anything else that it raises is a bug, and goes on.
    """
    leading_axes = (1, channels, 1) if channels else ()  # axes in front of that of the integers
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
    import onnxruntime  # only a model that has such a chain pays for it

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
