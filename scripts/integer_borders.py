"""Quantised models with integer inputs and outputs, the form that other compilers of NPUs expect."""

from __future__ import annotations

from onnx import ModelProto, ValueInfoProto, helper


def with_integer_borders(model: ModelProto) -> ModelProto:
    """Model without the QuantizeLinear of its inputs and the DequantizeLinear of its outputs; unchanged without these.

    Raises `ValueError` if another node reads a float input, or the integers of a float output.
    """
    out = ModelProto()
    out.CopyFrom(model)
    graph = out.graph
    types = {item.name: item.data_type for item in graph.initializer}
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.node):
        for name in node.input:
            readers.setdefault(name, []).append(i)
    removed = set[int]()
    for item in graph.input:
        consumers = readers.get(item.name, [])
        if any(graph.node[i].op_type == "QuantizeLinear" for i in consumers):
            if len(consumers) != 1:
                raise ValueError(f"{item.name}: {len(consumers)} nodes read it; accepted: one QuantizeLinear")
            removed.add(consumers[0])
            _rename(item, graph.node[consumers[0]].output[0], types[graph.node[consumers[0]].input[2]])
    producer = {node.output[0]: i for i, node in enumerate(graph.node)}
    for item in graph.output:
        node = graph.node[producer[item.name]]
        if node.op_type == "DequantizeLinear":
            if item.name in readers:
                raise ValueError(f"{item.name}: other nodes read it too; accepted: an output alone")
            removed.add(producer[item.name])
            _rename(item, node.input[0], types[node.input[2]])
    nodes = [node for i, node in enumerate(graph.node) if i not in removed]
    del graph.node[:]
    graph.node.extend(nodes)
    return out


def _rename(item: ValueInfoProto, name: str, elem_type: int) -> None:
    dims = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
    item.CopyFrom(helper.make_tensor_value_info(name, elem_type, dims))
