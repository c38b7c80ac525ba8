"""What onnxruntime has in the integer tensors of a quantised model, and whether the formulas give the same.

The reference is the graph that onnxruntime itself makes of the model with its default optimisations: it groups QuantizeLinear and
DequantizeLinear around an operator, and turns int8 activations between them into uint8.  It is saved, its tensors are made outputs, and
every operator is computed by its formula from onnxruntime's own inputs.

On x86 without VNNI kernels for uint8 times int8 add two products in int16, with saturation.
`session.x64quantprecision` makes onnxruntime turn such weights into uint8, whose kernels are exact, so the reference asks for it there.
Elsewhere it does not: there is no kernel for activations of int8 and weights of uint8, which QGemm would need.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.frontend.attributes import one_line
from simulator.npu.errors import BadInputError
from tuner.checks.integer_nodes import formula_of

Array = NDArray[Any]
FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")  # what the kernels are chosen by


@dataclass(frozen=True, eq=False)
class Computed:
    """A node of the optimised graph, with what onnxruntime gave it and what it made of it; None for an optional input that is not there."""

    node: NodeProto
    inputs: tuple[Array | None, ...]
    outputs: tuple[Array, ...]

    @property
    def is_quantised(self) -> bool:
        """Whether it makes int8, uint8 or int32, or reads 8-bit integers."""
        read = any(value is not None and value.dtype in (np.int8, np.uint8) for value in self.inputs)
        return read or any(value.dtype in (np.int8, np.uint8) for value in self.outputs)


@dataclass(frozen=True, eq=False)
class Integers:
    """nodes: in the order of the optimised graph.  outputs: of the model, by name.  cpu: which of `FEATURES` it ran with.

    precise: whether `session.x64quantprecision` was asked for.
    """

    nodes: tuple[Computed, ...]
    outputs: Mapping[str, Array]
    cpu: tuple[str, ...]
    precise: bool


@dataclass(frozen=True)
class Difference:
    """differing: of `count` values of an operator's outputs; None where it has no formula."""

    name: str
    kind: str
    differing: int | None
    count: int


def integers_of(model: ModelProto, feeds: Mapping[str, Array], precise: bool | None = None) -> Integers:
    """Run a model on onnxruntime and keep every tensor.  precise: None asks where this CPU needs it.  Raises BadInputError."""
    precise = not multiplies_exactly() if precise is None else precise
    with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
        path = Path(folder) / "optimised.onnx"
        expected = _run(_session(model, precise, path), None, feeds)
        optimised = onnx.load(path)
    constants = {item.name: numpy_helper.to_array(item) for item in optimised.graph.initializer}
    names = [item.name for item in optimised.graph.output]
    made = [name for node in optimised.graph.node for name in node.output if name]
    exposed = ModelProto()
    exposed.CopyFrom(optimised)
    # a type has to be there, and onnxruntime finds the right one
    exposed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in made if name not in names)
    asked = list(dict.fromkeys([*names, *made]))
    values = dict(zip(asked, _run(_session(exposed, precise, None), asked, feeds), strict=True))
    for name, before in zip(names, expected, strict=True):
        if not np.array_equal(before, values[name], equal_nan=before.dtype.kind == "f"):
            raise BadInputError(f"output {name!r}: onnxruntime gives other values when its tensors are looked at")
    values.update(constants, **{name: np.asarray(value) for name, value in feeds.items()})
    nodes = tuple(
        Computed(node, tuple(values[name] if name else None for name in node.input), tuple(values[name] for name in node.output if name))
        for node in optimised.graph.node
    )
    return Integers(nodes, {name: values[name] for name in names}, cpu_features(), precise)


def _session(model: ModelProto, precise: bool, saved: Path | None) -> Any:
    """saved: where the optimised graph goes; None for a graph that stays as it is."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", str(int(precise)))
    if saved is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.optimized_model_filepath = str(saved)
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  onnxruntime raises many types
        raise BadInputError(f"onnxruntime cannot load the model: {one_line(error)}") from None


def _run(session: Any, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
    try:
        return list(session.run(names, dict(feeds)))
    except Exception as error:  # noqa: BLE001  as above
        raise BadInputError(f"onnxruntime cannot run the model: {one_line(error)}") from None


def differences(integers: Integers) -> tuple[Difference, ...]:
    """Every operator on 8-bit integers, by its formula from onnxruntime's own inputs.

    Raises BadInputError for what the formulas refuse.
    """
    out = []
    for computed in integers.nodes:
        if not computed.is_quantised:
            continue
        node, formula = computed.node, formula_of(computed.node)
        count = sum(value.size for value in computed.outputs)
        differing = None
        if formula is not None:
            mine = formula(computed.inputs)
            differing = sum(_differing(a, b) for a, b in zip(mine, computed.outputs, strict=True))
        out.append(Difference(node.name or node.output[0], node.op_type, differing, count))
    return tuple(out)


def _differing(mine: Array, theirs: Array) -> int:
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return theirs.size
    return int((mine != theirs).sum() - (np.isnan(mine) & np.isnan(theirs)).sum() if theirs.dtype.kind == "f" else (mine != theirs).sum())


def summary(found: Sequence[Difference]) -> list[str]:
    """A line for each kind: operators, values, differing values."""
    kinds = Counter(one.kind for one in found)
    out = []
    for kind, operators in sorted(kinds.items()):
        of_kind = [one for one in found if one.kind == kind]
        counted = [one.differing for one in of_kind if one.differing is not None]
        said = f"{sum(counted):,} differing" if len(counted) == len(of_kind) else "no formula"
        out.append(f"{kind}: {operators} operators, {sum(one.count for one in of_kind):,} values, {said}")
    return out


def cpu_features() -> tuple[str, ...]:
    """Those of `FEATURES` that this CPU has, as Linux says; () elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith("flags")), [])
    return tuple(name for name in FEATURES if name in flags)


def multiplies_exactly() -> bool:
    """Whether uint8 times int8 does not saturate here: the largest pair of products, where `session.x64quantprecision` is not asked."""
    a, b = np.full((1, 4), 255, np.uint8), np.full((4, 16), 127, np.int8)
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    graph = helper.make_graph(
        [node], "probe", [helper.make_tensor_value_info("a", TensorProto.UINT8, a.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 16])], [numpy_helper.from_array(b, "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (sums,) = _session(model, False, None).run(None, {"a": a})
    return bool((sums == 255 * 127 * 4).all())
