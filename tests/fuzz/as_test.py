"""A sample as the text of a test, and what such tests call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.fuzz.builder import MS, Array, Sample, port_of
from tests.fuzz.outcome import Outcome, judge, outcome_line
from tests.fuzz.plans import plan_names
from tests.fuzz.trial import Target


def regular(shape: Sequence[int], dtype: str = "float32") -> Array:
    """Values of a type, the same for the same shape; floats are normal and what float16 holds."""
    rng = np.random.default_rng(list(shape))
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(tuple(shape)).astype(np.float16).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(max(-128, limits.min), min(255, limits.max), tuple(shape)).astype(dtype)


def sample_of(
    nodes: Sequence[NodeProto], feeds: Mapping[str, Any], outputs: Mapping[str, tuple[str, Sequence[int]]], constants: Mapping[str, Any],
    opset: int,
) -> Sample:  # fmt: skip
    """outputs: name -> type and shape."""

    given = {name: np.asarray(value) for name, value in feeds.items()}
    types = {name: helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for name, (kind, _) in outputs.items()}
    ports = [helper.make_tensor_value_info(name, types[name], shape) for name, (_, shape) in outputs.items()]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "fuzz", [port_of(name, value) for name, value in given.items()], ports, initializers)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(MS, 1)] if any(node.domain == MS for node in nodes) else [])]
    return Sample(helper.make_model(graph, opset_imports=opsets, ir_version=10), given)


def assert_right(
    nodes: Sequence[NodeProto], feeds: Mapping[str, Any], outputs: Mapping[str, tuple[str, Sequence[int]]], constants: Mapping[str, Any],
    opset: int, machine: str, dtype: str, plans: Sequence[str] = plan_names(2), seed: int = 0,
) -> None:  # fmt: skip
    """What the nodes compute with plans on a machine is what onnxruntime makes of them."""
    sample = sample_of(nodes, feeds, outputs, constants, opset)
    found = judge(sample, Target(load_machine(machine), DataType[dtype], tuple(plans)), seed)
    assert not found.fault, outcome_line(found)


def text_of(sample: Sample, fault: Outcome, machine: str, dtype: str, seed: int) -> str:
    """A test function, to be pasted."""
    graph = sample.model.graph
    slug = re.sub(r"\W+", "_", "_".join(node.op_type.lower() for node in graph.node[:4]))
    lines = [f"def test_{slug}_{seed}() -> None:", f'    """{_one_line(outcome_line(fault))}"""', "    nodes = ["]
    lines += [f"        {_node(node)}," for node in graph.node]
    lines += ["    ]", f"    feeds = {{{', '.join(f'{name!r}: {_array(value)}' for name, value in sample.feeds.items())}}}"]
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    lines += [f"    constants = {{{', '.join(f'{name!r}: {_array(value)}' for name, value in constants.items())}}}"]
    outputs = {port.name: _declared(port) for port in graph.output}
    opset = next(item.version for item in sample.model.opset_import if not item.domain)
    plans = f"plans=({fault.plan!r},), seed={seed}" if fault.plan else f"seed={seed}"
    lines += [f"    outputs = {outputs!r}", f"    assert_right(nodes, feeds, outputs, constants, {opset}, {machine!r}, {dtype!r}, {plans})"]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.replace('"', "'").replace("\\", "/").split())[:160]


def _declared(port: Any) -> tuple[str, list[int]]:
    kind = port.type.tensor_type
    return helper.tensor_dtype_to_np_dtype(kind.elem_type).name, [dim.dim_value for dim in kind.shape.dim]


def _node(node: NodeProto) -> str:
    values = {item.name: _attribute(helper.get_attribute_value(item)) for item in node.attribute}
    values |= {"domain": node.domain} if node.domain else {}
    attributes = "".join(f", {key}={value!r}" for key, value in values.items())
    return f"helper.make_node({node.op_type!r}, {list(node.input)!r}, {list(node.output)!r}{attributes})"


def _attribute(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return round(value, 6) if isinstance(value, float) else value if isinstance(value, int) else list(value)


def _array(value: Array) -> str:
    if value.size > 4 and np.array_equal(value, regular(value.shape, value.dtype.name)):
        kind = "" if value.dtype == np.float32 else f", {value.dtype.name!r}"
        return f"regular({list(value.shape)}{kind})"
    return f"np.array({value.tolist()!r}, np.{value.dtype.name})"
