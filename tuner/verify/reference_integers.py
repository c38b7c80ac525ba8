"""Quantised bodies in the child of `tuner.verify.reference`: tensors that have to be right to the bit, and operators on integers alone.

An operator alone reads onnxruntime's own integers, so that nothing is carried on from one to the next, not across floats either.
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
from simulator.exact_onnxruntime import exact_model, tensors
from simulator.npu.errors import BadInputError
from simulator.onnx_kinds import INTEGERS_ON_NPU
from simulator.onnx_names import names_read
from tuner.verify.isolate_operators import cut, on_integers
from tuner.verify.reference import differing

Array = NDArray[Any]
_INTEGERS = (*INTEGERS_ON_NPU, TensorProto.INT32)


def is_quantised(model: ModelProto) -> bool:
    return any(_scaled(node) is not None or ("", node.op_type) in ZERO_POINT_POSITIONS for node in model.graph.node)


def _scaled(node: NodeProto) -> ScalePositions | None:
    return SCALE_POSITIONS.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def with_integers(model: ModelProto, types: Mapping[str, int]) -> dict[str, int]:
    """Element types, those behind operators that onnx has no rule for as well."""
    found = dict(types)
    zeros = {item.name: item.data_type for item in model.graph.initializer}
    for node in model.graph.node:
        scaled = _scaled(node)
        if not node.output or node.output[0] in found:
            continue
        if scaled is not None:
            zero = "" if scaled.result is None else [*node.input, "", ""][scaled.result + 1]
            found[node.output[0]] = TensorProto.FLOAT if scaled.result is None else zeros.get(zero, TensorProto.UINT8)
        elif node.op_type in MOVES and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


@dataclass(frozen=True)
class FloatBorders:
    """exact: tensors with no floating operator between them and what the model, or their piece, is given.

    steps: tensor -> what one step of its integers is in its own numbers.
    """

    exact: frozenset[str]
    steps: Mapping[str, float]


def borders(model: ModelProto, of_piece: Mapping[int, Sequence[str]], types: Mapping[str, int], wide: Iterable[str]) -> FloatBorders:
    """of_piece: number of a node on the NPU -> what its piece is given.  wide: floats that the NPU takes and gives in float32."""
    wide = set(wide)
    clean = {item.name for item in model.graph.input}
    steps: dict[str, float] = {}
    whole = fuse_groups(model)
    constants = {item.name: item for item in whole.model.graph.initializer}  # tables of groups as well
    outside: set[str] = set(clean)
    for node, members in zip(whole.model.graph.node, whole.members, strict=True):
        given = of_piece.get(min(members))
        view = node.op_type in VIEWS and not node.domain
        read = names_read([node]) - constants.keys()
        if given is None:
            known = read <= clean
            outside.update(node.output)
        else:
            known = all(
                types.get(name) in _INTEGERS or name in wide
                if name in given
                else name in clean and (view or types.get(name) in INTEGERS_ON_NPU)
                for name in read
            )
        scaled = _scaled(node)
        if scaled is not None:
            scale = constants.get([*node.input, ""][1 if scaled.result is None else scaled.result])
            one = 1.0 if scaled.result is not None or scale is None else float(numpy_helper.to_array(scale).max(initial=0.0))
            steps[node.output[0]] = one
        elif view or (node.op_type in MOVES and not node.domain):
            if node.input[0] in steps:
                steps[node.output[0]] = steps[node.input[0]]
        elif given is None or (types.get(node.output[0]) not in _INTEGERS and not (column_tensor_names(node) and node.output[0] in wide)):
            known = False
        if known:  # floats of a piece are rounded to its own type
            clean.update(name for name in node.output if given is None or name in wide or types.get(name) in _INTEGERS)
    return FloatBorders(frozenset(name for name in clean if name in outside or name in wide or types.get(name) in _INTEGERS), steps)


class IntegersTold(NamedTuple):
    """told: what goes into JSON; arrays: what does not."""

    told: dict[str, Any]
    arrays: list[Array]
    model: ModelProto


def integers(model: ModelProto, inside: Iterable[int], types: Mapping[str, int], feeds: Mapping[str, Array], floats: Path) -> IntegersTold:
    """What onnxruntime has of a quantised model.  floats: the float model that it was made of, if there is one."""
    inside, whole, fused = set(inside), fuse_groups(model), exact_model(model)
    constants = {item.name for item in whole.model.graph.initializer}
    nodes = [
        node for node, members in zip(whole.model.graph.node, whole.members, strict=True) if members <= inside and on_integers(node, types)
    ]
    made = {name for node in fused.graph.node for name in node.output}
    wanted = {name for node in nodes for name in (*node.input, *node.output) if name and name not in constants and name in made}
    values = tensors(fused, feeds, [*(item.name for item in fused.graph.output), *sorted(wanted)]) | dict(feeds)
    outputs = {item.name: values[item.name] for item in fused.graph.output}
    alone = cut(model, inside, types, values)
    every = sorted(name for name in wanted if types.get(name) in INTEGERS_ON_NPU)
    unfused = tensors(exact_model(alone.model, group=False), alone.given, alone.kinds)
    through = tensors(exact_model(model, group=False), feeds, every)
    stock = _stock(model, feeds)
    told = {
        "stock_differing": sum(differing(mine, stock[name]) for name, mine in outputs.items()),
        "stock_values": sum(array.size for array in outputs.values()),
        "kinds": dict(alone.kinds),
        "given": list(alone.given),
        "left_out": [node.name or node.output[0] for node in nodes if node.output[0] not in alone.kinds],
        "unfused": histogram((unfused[name], value) for name, value in alone.expected.items() if value.dtype.kind in "iu"),
        "unfused_through": histogram((through[name], values[name]) for name in every),
        "floats": [],
    }
    arrays = [*alone.given.values(), *alone.expected.values()]
    if floats.is_file():
        found = _stock(onnx.load(floats), feeds)
        if {name: array.shape for name, array in found.items()} != {name: array.shape for name, array in outputs.items()}:
            there = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
            here = ", ".join(f"{name} {list(array.shape)}" for name, array in found.items())
            raise BadInputError(f"the float model has outputs {here}; expected {there}")
        told["floats"], arrays = list(found), [*arrays, *found.values()]
    return IntegersTold(told, arrays, alone.model)


def _stock(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of a session with onnxruntime's default options."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    asked = {item.name for item in session.get_inputs()}
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, {name: array for name, array in feeds.items() if name in asked}), strict=True))


def histogram(pairs: Iterable[tuple[Array, Array]]) -> dict[str, int]:
    """By how much integers differ -> how many do."""
    counts: Counter[int] = Counter()
    for mine, theirs in pairs:
        found, times = np.unique(np.abs(mine.astype(np.int64) - theirs.astype(np.int64)), return_counts=True)
        counts.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
    return {str(step): counts[step] for step in sorted(counts)}
