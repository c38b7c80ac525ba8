"""onnxruntime with exact integers on every CPU: sessions of models that may be quantised.

`session.qdqisint8allowed`: operators between int8 tensors are grouped like those between uint8 tensors.  By default x86 first converts
such tensors to uint8 and leaves a third of the convolutions in floats, whose sums have no reproducible order.

On x86 without VNNI, kernels for uint8 times int8 add two products in int16 with saturation; kernels for other pairs of types are exact.
So the graph that onnxruntime makes of a model is saved, and the second factor of such products becomes uint8: its values and its zero point
grow by 128.  This happens on every CPU, so that all have one reference.  The option `session.x64quantprecision` does it before grouping,
and also for weights between int8 tensors, whose products then have no kernel; it fails if two operators read one weight.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort

Array = NDArray[Any]
# errors of a session for a model or values that it does not accept
REFUSALS = (ort.Fail, ort.InvalidArgument, ort.InvalidGraph, ort.InvalidProtobuf, ort.NotImplemented, ort.RuntimeException, RuntimeError)
# operator -> inputs of each of its products: the first factor, its zero point, the second factor, its zero point
_PRODUCTS: Mapping[str, tuple[tuple[int, int, int, int], ...]] = {
    "ConvInteger": ((0, 2, 1, 3),),
    "DynamicQuantizeLSTM": ((0, 0, 1, 9), (0, 0, 2, 11)),
    "DynamicQuantizeMatMul": ((0, 0, 1, 3),),
    "MatMulInteger": ((0, 2, 1, 3),),
    "MatMulIntegerToFloat": ((0, 4, 1, 5),),
    "QAttention": ((0, 6, 1, 7),),
    "QGemm": ((0, 2, 3, 5),),
    "QLinearConv": ((0, 2, 3, 5),),
    "QLinearMatMul": ((0, 2, 3, 5),),
}
_MOVE_AXES = ["NhwcTransformer", "NchwcTransformer"]
_OURS = "tilefarm.uint8."  # before names of tensors that are added here


def session_options(group: bool = True) -> Any:
    """Options for one thread without messages.  group: whether the graph may be changed."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    if not group:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def exact_session(model: ModelProto) -> onnxruntime.InferenceSession:
    """A session of `exact_model` for a quantised model; of any other as it is."""
    nodes = _every_node([*model.graph.node, *(node for function in model.functions for node in function.node)])
    quantised = any(node.op_type in _PRODUCTS or node.op_type == "DequantizeLinear" for node in nodes)
    return _session(exact_model(model) if quantised else model, session_options(not quantised))


def exact_model(model: ModelProto, group: bool = True) -> ModelProto:
    """Model as optimised by onnxruntime, without products of uint8 by int8; a session for it must not change it again.

    group: whether operators between QuantizeLinear and DequantizeLinear are fused.  The passes that move axes are off, so tensors have the
    model's names and axes; the kernels are the same.  Raises as onnxruntime does.
    """
    if not model.graph.node:  # onnxruntime does not accept a model without nodes
        return model
    options = session_options(group)
    with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
        path = Path(folder) / "made.onnx"
        options.optimized_model_filepath = str(path)
        _session(model, options, _MOVE_AXES)
        optimised_model = onnx.load(path)
    factors = {
        node.input[index] for node in optimised_model.graph.node for product in _PRODUCTS.get(node.op_type, ()) for index in product[::2]
    }
    if factors:
        typed = _exposed(optimised_model, factors).get_outputs()
        _make_unsigned(optimised_model.graph, {item.name: item.type == "tensor(int8)" for item in typed})
    return optimised_model


def read_tensors(model: ModelProto, feeds: Mapping[str, Array], wanted: Iterable[str]) -> dict[str, Array]:
    """Values of tensors of an `exact_model` by name, outputs or others."""
    names = list(dict.fromkeys(wanted))
    if not names:  # onnxruntime would return all outputs for an empty list
        return {}
    session = _exposed(model, names)
    input_names = {item.name for item in session.get_inputs()}
    arrays = session.run(names, {name: array for name, array in feeds.items() if name in input_names})
    return {name: np.asarray(value) for name, value in zip(names, arrays, strict=True)}


def _session(model: ModelProto, options: Any, without: Collection[str] = ()) -> onnxruntime.InferenceSession:
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(without))


def _exposed(model: ModelProto, names: Iterable[str]) -> onnxruntime.InferenceSession:
    """A session with more outputs and no further optimisation."""
    outputs = model.graph.output
    output_names = {item.name for item in outputs}
    count = len(outputs)
    # the type must be set; onnxruntime replaces it by the correct one
    outputs.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in output_names)
    session = _session(model, session_options(group=False))
    del outputs[count:]
    return session


def _every_node(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """All nodes, including those of nested graphs."""
    for node in nodes:
        yield node
        yield from _every_node(inner for graph in _graphs(node) for inner in graph.node)


def _graphs(node: NodeProto) -> list[GraphProto]:
    of_graphs = (item for item in node.attribute if item.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS))
    return [graph for item in of_graphs for graph in ([item.g] if item.type == AttributeProto.GRAPH else item.graphs)]


def _make_unsigned(graph: GraphProto, signed: Mapping[str, bool], prefix: str = _OURS) -> None:
    """Make second factors uint8 where the first is not int8.  signed: name -> whether the tensor is int8, for tensors of known type."""
    constants = {"": numpy_helper.from_array(np.zeros((), np.int8)), **{item.name: item for item in graph.initializer}}
    signed = {**signed, **{name: item.data_type == TensorProto.INT8 for name, item in constants.items() if name}}
    nodes: list[NodeProto] = []
    unsigned_names = set[str]()

    def unsigned(name: str) -> str:
        new = prefix + name
        if new not in unsigned_names and name in constants:
            graph.initializer.append(numpy_helper.from_array(np.asarray(numpy_helper.to_array(constants[name]).view(np.uint8) ^ 128), new))
        elif new not in unsigned_names:  # converted like floats, with a scale of 1
            one = helper.make_node("Constant", [], [f"{new}.one"], value_float=1.0)
            floats = helper.make_node("DequantizeLinear", [name, f"{new}.one"], [f"{new}.floats"])
            zero = unsigned("")
            nodes.extend([one, floats, helper.make_node("QuantizeLinear", [f"{new}.floats", f"{new}.one", zero], [new])])
        unsigned_names.add(new)
        return new

    def is_int8(*names: str) -> bool:
        return next((signed[name] for name in names if name in signed), False)

    for node in graph.node:
        for inner in _graphs(node):
            _make_unsigned(inner, signed, prefix + ".")
        for first, its_zero, second, zero in _PRODUCTS.get(node.op_type, ()):
            inputs = [*node.input, *[""] * (zero + 1 - len(node.input))]
            if is_int8(inputs[second], inputs[zero]) and not is_int8(inputs[first], inputs[its_zero]):
                inputs[second], inputs[zero] = unsigned(inputs[second]), unsigned(inputs[zero])
                node.input[:] = inputs
        nodes.append(node)
    graph_copy = GraphProto(node=nodes)  # a copy, because the graph that owns the nodes is freed
    del graph.node[:]
    graph.node.extend(graph_copy.node)
