"""Quantised bodies in the child of `tuner.verify.reference`: tensors that must match to the bit, and isolated integer operators.

An isolated operator reads onnxruntime's own integers, so no error passes from one to the next, not across floats either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from compiler.frontend.handlers.qdq_fusion import fuse_groups
from compiler.frontend.onnx_io.fold import VIEWS
from compiler.frontend.onnx_io.scales import MOVES, SCALE_POSITIONS, ZERO_POINT_POSITIONS, ScalePositions, column_tensor_names
from simulator.exact_onnxruntime import exact_model, read_tensors
from simulator.npu.errors import BadInputError
from simulator.onnx_kinds import INTEGERS_ON_NPU
from simulator.onnx_names import names_read
from tuner.verify.isolate_operators import isolate_operators, on_integers
from tuner.verify.reference import count_differing

Array = NDArray[Any]
_INTEGERS = (*INTEGERS_ON_NPU, TensorProto.INT32)


def is_quantised(model: ModelProto) -> bool:
    return any(_scaled(node) is not None or ("", node.op_type) in ZERO_POINT_POSITIONS for node in model.graph.node)


def _scaled(node: NodeProto) -> ScalePositions | None:
    return SCALE_POSITIONS.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def infer_types(model: ModelProto, types: Mapping[str, int]) -> dict[str, int]:
    """Element types of all tensors, also behind operators without an onnx rule."""
    all_types = dict(types)
    zeros = {item.name: item.data_type for item in model.graph.initializer}
    for node in model.graph.node:
        scaled = _scaled(node)
        if not node.output or node.output[0] in all_types:
            continue
        if scaled is not None:
            zero = "" if scaled.result is None else [*node.input, "", ""][scaled.result + 1]
            all_types[node.output[0]] = TensorProto.FLOAT if scaled.result is None else zeros.get(zero, TensorProto.UINT8)
        elif node.op_type in MOVES and node.input[0] in all_types:
            all_types[node.output[0]] = all_types[node.input[0]]
    return all_types


@dataclass(frozen=True)
class FloatBorders:
    """Borders between exact and floating parts.  exact: tensors with no floating operator after the inputs of the model or of their piece.

    steps: tensor -> size of one step of its integers, in real numbers.
    """

    exact: frozenset[str]
    steps: Mapping[str, float]


def find_borders(
    model: ModelProto, piece_inputs: Mapping[int, Sequence[str]], types: Mapping[str, int], wide: Iterable[str]
) -> FloatBorders:
    """Find exact tensors and their steps.  piece_inputs: NPU node -> inputs of its piece.  wide: floats of the NPU's ports in float32."""
    wide = set(wide)
    clean = {item.name for item in model.graph.input}
    steps: dict[str, float] = {}
    groups = fuse_groups(model)
    constants = {item.name: item for item in groups.model.graph.initializer}  # includes tables of groups
    host_tensors: set[str] = set(clean)
    for node, members in zip(groups.model.graph.node, groups.members, strict=True):
        inputs = piece_inputs.get(min(members))
        view = node.op_type in VIEWS and not node.domain
        read = names_read([node]) - constants.keys()
        if inputs is None:
            is_exact = read <= clean
            host_tensors.update(node.output)
        else:
            is_exact = all(
                types.get(name) in _INTEGERS or name in wide
                if name in inputs
                else name in clean and (view or types.get(name) in INTEGERS_ON_NPU)
                for name in read
            )
        scaled = _scaled(node)
        if scaled is not None:
            scale = constants.get([*node.input, ""][1 if scaled.result is None else scaled.result])
            step = 1.0 if scaled.result is not None or scale is None else float(numpy_helper.to_array(scale).max(initial=0.0))
            steps[node.output[0]] = step
        elif view or (node.op_type in MOVES and not node.domain):
            if node.input[0] in steps:
                steps[node.output[0]] = steps[node.input[0]]
        elif inputs is None or (types.get(node.output[0]) not in _INTEGERS and not (column_tensor_names(node) and node.output[0] in wide)):
            is_exact = False
        if is_exact:  # floats of a piece are excluded: they are rounded to its type
            clean.update(name for name in node.output if inputs is None or name in wide or types.get(name) in _INTEGERS)
    return FloatBorders(frozenset(name for name in clean if name in host_tensors or name in wide or types.get(name) in _INTEGERS), steps)


class IntegerAnswer(NamedTuple):
    """Reply of the integer job.  answer: JSON part; arrays: all others."""

    answer: dict[str, Any]
    arrays: list[Array]
    model: ModelProto


def collect_integers(
    model: ModelProto, npu_nodes: Iterable[int], types: Mapping[str, int], feeds: Mapping[str, Array], floats: Path
) -> IntegerAnswer:
    """Integers of a quantised model on onnxruntime.  floats: path of its float model, which may be missing."""
    npu_nodes, groups, fused = set(npu_nodes), fuse_groups(model), exact_model(model)
    constants = {item.name for item in groups.model.graph.initializer}
    nodes = [
        node
        for node, members in zip(groups.model.graph.node, groups.members, strict=True)
        if members <= npu_nodes and on_integers(node, types)
    ]
    names = {name for node in fused.graph.node for name in node.output}
    tensors = {name for node in nodes for name in (*node.input, *node.output) if name and name not in constants and name in names}
    values = read_tensors(fused, feeds, [*(item.name for item in fused.graph.output), *sorted(tensors)]) | dict(feeds)
    outputs = {item.name: values[item.name] for item in fused.graph.output}
    isolated = isolate_operators(model, npu_nodes, types, values)
    npu_names = sorted(name for name in tensors if types.get(name) in INTEGERS_ON_NPU)
    # without groups the operators compute in float: distance of each alone, and of all in sequence
    unfused = read_tensors(exact_model(isolated.model, group=False), isolated.given, isolated.kinds)
    integer_values = read_tensors(exact_model(model, group=False), feeds, npu_names)
    stock = _stock(model, feeds)
    report = {
        "stock_differing": sum(count_differing(output, stock[name]) for name, output in outputs.items()),
        "stock_values": sum(array.size for array in outputs.values()),
        "kinds": dict(isolated.kinds),
        "given": list(isolated.given),
        "left_out": [node.name or node.output[0] for node in nodes if node.output[0] not in isolated.kinds],
        "unfused": histogram((unfused[name], value) for name, value in isolated.expected.items() if value.dtype.kind in "iu"),
        "unfused_through": histogram((integer_values[name], values[name]) for name in npu_names),
        "floats": [],
    }
    arrays = [*isolated.given.values(), *isolated.expected.values()]
    if floats.is_file():
        float_outputs = _stock(onnx.load(floats), feeds)
        if {name: array.shape for name, array in float_outputs.items()} != {name: array.shape for name, array in outputs.items()}:
            expected_text = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
            given_text = ", ".join(f"{name} {list(array.shape)}" for name, array in float_outputs.items())
            raise BadInputError(f"the float model has outputs {given_text}; expected {expected_text}")
        report["floats"], arrays = list(float_outputs), [*arrays, *float_outputs.values()]
    return IntegerAnswer(report, arrays, isolated.model)


def _stock(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs with onnxruntime's default options."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    input_names = {item.name for item in session.get_inputs()}
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, {name: array for name, array in feeds.items() if name in input_names}), strict=True))


def histogram(pairs: Iterable[tuple[Array, Array]]) -> dict[str, int]:
    """Histogram of integer differences: difference -> count."""
    counts: Counter[int] = Counter()
    for computed, expected in pairs:
        steps, times = np.unique(np.abs(computed.astype(np.int64) - expected.astype(np.int64)), return_counts=True)
        counts.update(dict(zip(steps.tolist(), times.tolist(), strict=True)))
    return {str(step): counts[step] for step in sorted(counts)}
