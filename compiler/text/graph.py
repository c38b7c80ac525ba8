"""A graph as it is lowered and rewritten: an operator a line.  Weights show as a shape and a fingerprint."""

from __future__ import annotations

import hashlib

from compiler.ir.graph import (
    Concat,
    Conv,
    Floats,
    Graph,
    LayerNorm,
    MatMul,
    Operator,
    Pool,
    Port,
    Reflow,
    Resample,
    Shape,
    Shuffle,
    Softmax,
    Step,
)
from compiler.ir.taps import Taps
from simulator.npu.isa import bits_float


def graph_lines(graph: Graph, fingerprints: bool = True) -> list[str]:
    """`operator result: shape = kind(operands) attributes`, the operator's name where it is another than its result's.

    Shapes are n x c x h x w.  fingerprints: six hex digits over each constant's values; off where these differ between libraries'
    versions."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input {_port(port, graph.shapes[port.tensor])}" for port in graph.inputs]
    lines += [f"  constant {name}: {_values(values, fingerprints)}" for name, values in graph.constants.items()]
    for op in graph.operators:
        name = op.y if op.name == op.y else f"{op.name} {op.y}"
        lines.append(f"  {name}: {_shape(graph.shapes[op.y])} = {_operator(op, fingerprints)}")
    return lines + [f"  output {_port(port, graph.shapes[port.tensor])}" for port in graph.outputs]


def _port(port: Port, shape: Shape) -> str:
    same = tuple(port.onnx_shape) == shape and port.onnx_name == port.tensor
    named = "" if same else f" as {port.onnx_name} [{', '.join(map(str, port.onnx_shape))}]"
    return f"{port.tensor}: {_shape(shape)}{named}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _values(array: Floats, fingerprints: bool) -> str:
    if not fingerprints:
        return _shape(array.shape)
    return f"{_shape(array.shape)}#{hashlib.sha256(array.tobytes()).hexdigest()[:6]}"


def _operator(op: Operator, fingerprints: bool) -> str:
    head = f"{type(op).__name__.lower()}({', '.join(op.inputs)})"
    return " ".join([head, *_details(op, fingerprints)])


def _details(op: Operator, fingerprints: bool) -> list[str]:
    if isinstance(op, Conv):
        out = [f"weights={_values(op.weights, fingerprints)}", f"bias={_values(op.bias, fingerprints)}"]
        out += _window(op.stride, op.pads)
        out += [f"dilation={_shape(op.dilation)}"] if op.dilation != (1, 1) else []
        out += [f"groups={op.groups}"] if op.groups > 1 else []
        out += [f"limit={op.limit:.9g}"] if op.activation == "clip" else []
        return out + ([op.activation] if op.activation != "none" else [])
    if isinstance(op, Pool):
        out = [op.mode, f"kernel={_shape(op.kernel)}", *_window(op.stride, op.pads)]
        return out + (["count_include_pad"] if op.count_include_pad else [])
    if isinstance(op, Resample):
        return [f"rows={_taps(op.rows)}", f"columns={_taps(op.columns)}", f"fill={op.fill:.9g}"]
    if isinstance(op, Shuffle):
        return [f"order={_order(op.order)}"]
    if isinstance(op, Softmax):
        return [f"groups={op.groups}"] if op.groups > 1 else []
    if isinstance(op, LayerNorm):
        return [f"scale={_values(op.scale, fingerprints)}", f"shift={_values(op.shift, fingerprints)}", f"epsilon={op.epsilon:.3g}"]
    if isinstance(op, MatMul):
        return [f"heads={op.heads}", *(["transposed"] if op.transposed else [])]
    if isinstance(op, Reflow):
        return [f"size={_shape(op.size)}", *([f"before={op.before}"] if op.before else [])]
    if isinstance(op, Concat):
        return []
    return ["[" + "; ".join(_step(step, fingerprints) for step in op.steps) + "]"]


def _taps(taps: Taps) -> str:
    """Runs as place+step*count<-source+step, with a weight that is not 1."""
    runs = []
    for place, step, count, source, source_step, bits, _ in taps.runs.tolist():
        weight = bits_float(bits)
        runs.append(f"{place}+{step}*{count}<-{source}+{source_step}" + (f"@{weight:.9g}" if weight != 1 else ""))
    return f"{len(taps)}({' '.join(runs)})"


def _window(stride: tuple[int, int], pads: tuple[int, int, int, int]) -> list[str]:
    out = [f"stride={_shape(stride)}"] if stride != (1, 1) else []
    return out + ([f"pads={','.join(map(str, pads))}"] if any(pads) else [])


def _order(order: tuple[int, ...]) -> str:
    """groups:g where channels are dealt out from g groups, else the list."""
    size = len(order)
    for groups in range(2, size):
        if size % groups == 0 and order == tuple(g * (size // groups) + m for m in range(size // groups) for g in range(groups)):
            return f"groups:{groups}"
    return ",".join(map(str, order))


def _step(step: Step, fingerprints: bool) -> str:
    if step.op == "scale_shift":
        assert step.scale is not None
        assert step.shift is not None
        return f"scale_shift {_values(step.scale, fingerprints)} {_values(step.shift, fingerprints)}"
    if step.operand >= 0 or step.kept >= 0:
        return f"{step.op} " + (f"#{step.operand}" if step.operand >= 0 else f"kept{step.kept}")
    return f"{step.op} {step.value:.9g}" if step.op in ("adds", "muls", "maxs", "mins") else step.op
