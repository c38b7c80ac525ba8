"""Check of the nodes of a model for support by handlers and machine.

Each node is translated separately; outputs of a refused node are treated as inputs of the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from onnx import ModelProto

from compiler.frontend.handlers.dynamic_zero_points import column_producers
from compiler.frontend.handlers.qdq_fusion import FusedModel, fuse_groups
from compiler.frontend.handlers.to_graph import HOST_TYPES, Handler, Translator, has_shape, other_readings, translate_node
from compiler.frontend.onnx_io.attributes import label
from compiler.ir.graph import Graph, Port
from compiler.ir.operators import Operator
from simulator.npu.errors import UnsupportedError

MachineCheck = Callable[[Graph], object]  # raises UnsupportedError for a graph that the machine cannot run
Handlers = Mapping[str, Handler]


class SupportCheck(NamedTuple):
    """Result of a check.  refused: node -> reason, without its name.  views: nodes without an operator.  operators: number of operators.

    A group is represented by the node of its operator.
    """

    refused: dict[int, str]
    views: set[int]
    operators: int


class MachineSupport:
    """Cache of the machine's support for integer operators: trials repeat them, and packing weights is slow.

    no_floats: reason why float operators are unsupported, or ''.
    """

    def __init__(self, able: MachineCheck, no_floats: str) -> None:
        self._able, self._no_floats, self._known = able, no_floats, dict[tuple[str, ...], str]()

    def __call__(self, op: Operator, state: Translator) -> str:
        """Reason why the machine cannot run an emitted operator, or ''."""
        names = (*op.inputs, op.y)
        types = {name: state.types[name] for name in names if name in state.types}
        if not types:
            return self._no_floats
        key = (op.name, *(f"{state.shapes[name]} {types.get(name)}" for name in names))
        if key not in self._known:
            ports = [Port(name, name, state.shapes[name]) for name in names]
            tensors = {name: state.tensors[name] for name in op.inputs if name in state.tensors}
            inputs = tuple(dict.fromkeys(port for port in ports[:-1] if port.tensor not in tensors))
            shapes = {name: state.shapes[name] for name in names}
            try:
                self._able(Graph("one", inputs, (ports[-1],), (op,), shapes, "", tensors, types))
                self._known[key] = ""
            except UnsupportedError as error:
                self._known[key] = str(error).removeprefix(f"operator {op.name!r}: ")
        return self._known[key]


def check_support(model: ModelProto, handlers: Handlers, able: MachineSupport | None) -> SupportCheck:
    """Check every node of a model.  Rows of matrices are pixels, or images where that refuses fewer nodes; so are images."""
    groups = fuse_groups(model)
    state = Translator(groups.model)
    row_trial = _trial(model, groups, state, handlers, able)
    best = row_trial
    for reading in other_readings(state) if row_trial.refused else ():
        trial = _trial(model, groups, Translator(groups.model, None, None, *reading), handlers, able)
        best = trial if len(trial.refused) < len(best.refused) else best
    return best


def _trial(model: ModelProto, groups: FusedModel, state: Translator, handlers: Handlers, able: MachineSupport | None) -> SupportCheck:
    nodes = list(groups.model.graph.node)
    operator_node = [_operator(model, members) for members in groups.members]
    types = {port.name: port for port in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    refused: dict[int, str] = {}

    def from_host(names: Iterable[str]) -> None:
        for name in names:
            if name in types and not state.strange(types[name]):
                state.receive(types[name])

    from_host(port.name for port in model.graph.input if port.name not in state.constants)
    received = set(state.views)
    for_host = column_producers(groups.model)
    views: set[int] = set()
    for i, node in enumerate(nodes):
        before = len(state.operators)
        try:
            if i in for_host:
                raise state.refuse(node, "of an offset or scale of sums, in all of its bits; the host computes it")
            for name in node.input:
                if name and name not in state.views and name not in state.constants:
                    reason = state.strange(types[name]) if name in types else "of unknown type"
                    raise state.refuse(node, f"input {name!r} is {reason}; {HOST_TYPES} is supported")
            translate_node(state, node, handlers)
            for op in state.operators[before:]:
                if able is not None and (why := able(op, state)):
                    raise state.refuse(node, why)
            if len(state.operators) == before:
                views.add(operator_node[i])
        except UnsupportedError as error:
            refused[operator_node[i]] = str(error).removeprefix(f"{label(node)}: ")
            del state.operators[before:]
            from_host(node.output)
            received.update(name for name in node.output if name in state.views)
    producer = {name: operator_node[i] for i, node in enumerate(nodes) for name in node.output}
    taken: set[str] = set()
    # the producer of a tensor before its views, independent of the order of the model's outputs
    for port in sorted((port for port in model.graph.output if port.name in producer), key=lambda port: producer[port.name]):
        if (i := producer[port.name]) in refused:
            continue
        node = model.graph.node[i]
        try:
            if not has_shape(port):
                raise state.refuse(node, f"output {port.name!r} is of unknown shape; {HOST_TYPES} is supported")
            tensor = state.hand_over(port).tensor
            if tensor in received or tensor in taken:
                raise state.refuse(node, f"{port.name!r} is another view of {tensor!r}, which the host has as well")
            taken.add(tensor)
        except UnsupportedError as error:
            refused[i] = str(error).removeprefix(f"{label(node)}: ")
    return SupportCheck(refused, views, len(state.operators))


def _operator(model: ModelProto, members: Collection[int]) -> int:
    """Number of the node that computes in a group."""
    computing_nodes = [i for i in sorted(members) if model.graph.node[i].op_type not in ("DequantizeLinear", "QuantizeLinear")]
    return computing_nodes[0] if computing_nodes else max(members)
