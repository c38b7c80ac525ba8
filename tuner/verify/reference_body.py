"""Child of `tuner.verify.reference`: the body of a compiled model on onnxruntime, plain and with tensors rounded as on the NPU.

Command `python -m tuner.verify.reference_body FOLDER`; imports nothing of the simulator that would compile kernels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from compiler.frontend.frames import frame_count, restore_nodes, restore_ports
from compiler.frontend.handlers.qdq_fusion import fuse_groups
from simulator.exact_onnxruntime import exact_session
from simulator.npu.errors import BadInputError
from simulator.npu.float_range import OutOfRange, holds
from simulator.npu.parts import DataType
from simulator.onnx_kinds import INTEGERS_ON_NPU, widen_model
from simulator.onnx_names import DOMAIN, EP_DOMAIN, EP_OP, names_read, refill
from tuner.verify.reference import FLOATS, NO_BODY
from tuner.verify.reference_integers import FloatBorders, collect_integers, find_borders, infer_types, is_quantised

Array = NDArray[Any]
_OURS = "tilefarm."  # prefix of tensors added here
_RELABELS = ("Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze", "Dropout")
# float in, float out, but discontinuous or random
_STEPS = frozenset({
    "Bernoulli", "Ceil", "DynamicQuantizeLinear", "Floor", "Hardmax", "If", "Loop", "MaxUnpool", "Mod", "Multinomial", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Round", "Scan", "Shrink", "Sign", "ThresholdedRelu", "Unique",
})  # fmt: skip
_SCALE = _OURS + "scale"
# Rounding is noise, and one run is one sample: a network with few outputs may be lucky.  Rounding a multiple of a tensor by one of these
# gives another sample of the same size; below 1, so that nothing new overflows.  Inputs and weights are rounded as on the NPU.
SAMPLES = (1.0, 0.75, 0.6)
# Bits lost inside an operator of the vector unit, beyond the storage of its result, since each of its instructions rounds: a sum adds rows,
# then columns, each value to a rounded one; a function takes a few instructions.
_SUMS = dict.fromkeys(
    ("AveragePool", "GlobalAveragePool", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization", "LRN",
     "ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Softmax"), 2
)  # fmt: skip
_FUNCTIONS = dict.fromkeys(
    ("Celu", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Log", "Mish", "Pow", "Reciprocal", "Resize", "Selu",
     "Sigmoid", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh", "Upsample"), 1
)  # fmt: skip
_LOST_BITS = _SUMS | _FUNCTIONS
_SMOOTH = (TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.DOUBLE, *INTEGERS_ON_NPU)  # quantised values follow the float values


@dataclass(frozen=True)
class ReferencePiece:
    """Piece of a compiled model: runtime inputs, outputs, and its nodes in the plain model."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: range


def expand_bodies(model: ModelProto) -> tuple[ReferencePiece, ...]:
    """Restore the plain model of a compiled model: nodes of the functions' bodies, no container.  `model` is changed.

    Returns the pieces, () for a plain model.  The restored model has one frame.
    Raises `BadInputError` for style epcontext, which has no body.
    """
    if any(node.domain == EP_DOMAIN and node.op_type == EP_OP for node in model.graph.node):
        raise BadInputError("has no body to compare with (style epcontext); compile with --style function")
    weights = {tensor.name for tensor in model.graph.initializer}
    nodes: list[NodeProto] = []
    pieces = []
    frames = frame_count(model)
    nodes_of_frame = restore_nodes if frames > 1 else list
    for node in model.graph.node:
        if node.domain != DOMAIN:
            nodes += nodes_of_frame([node])
            continue
        bodies = [f for f in model.functions if f.domain == DOMAIN and f.name == node.op_type]
        if len(bodies) != 1:
            raise BadInputError(f"expected one function {DOMAIN}.{node.op_type} for the node of that name, found {len(bodies)}")
        if list(node.input) != list(bodies[0].input) or list(node.output) != list(bodies[0].output):
            raise BadInputError("names of the compiled node's inputs or outputs are not those of its body")
        begin = len(nodes)
        nodes += nodes_of_frame(bodies[0].node)
        pieces.append(
            ReferencePiece(tuple(name for name in node.input if name not in weights), tuple(node.output), range(begin, len(nodes)))
        )
    refill(model.graph.node, nodes)  # without the containers: up to hundreds of megabytes
    refill(model.functions, [f for f in model.functions if f.domain != DOMAIN])
    if frames > 1:
        restore_ports(model, frames)
    return tuple(pieces)


def softmax_inputs(model: ModelProto, names: Iterable[str]) -> dict[str, str]:
    """Inputs of Softmax by output tensor, for outputs of a Softmax (also through relabelling operators)."""
    producer = {name: node for node in model.graph.node for name in node.output}
    logits = {}
    for name in names:
        node = producer.get(name)
        while node is not None and node.op_type in _RELABELS:
            node = producer.get(node.input[0])
        if node is not None and node.op_type == "Softmax":
            logits[name] = node.input[0]
    return logits


def tensor_types(model: ModelProto) -> dict[str, int]:
    """Element types of all tensors known to shape inference.  Weights are replaced by their types, so nothing large is copied."""
    graph = model.graph
    light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    light.graph.node.extend(graph.node)
    light.graph.output.extend(graph.output)
    inputs = {item.name for item in graph.input}
    light.graph.input.extend(graph.input)
    light.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in inputs
    )
    inferred = onnx.shape_inference.infer_shapes(light).graph
    items = [*inferred.input, *inferred.value_info, *inferred.output]
    return {item.name: item.type.tensor_type.elem_type for item in items if item.type.HasField("tensor_type")}


def stepped_outputs(model: ModelProto, pieces: tuple[ReferencePiece, ...], types: Mapping[str, int]) -> list[str]:
    """Outputs of the model that are discontinuous in values of the NPU: an integer, boolean or step lies between."""
    npu_nodes = {k for piece in pieces for k in piece.nodes}
    smooth, jumps = {name for piece in pieces for name in piece.outputs}, set[str]()
    for k, node in enumerate(model.graph.node):
        if k in npu_nodes:
            continue  # given onnxruntime's own inputs
        read = names_read([node])
        if read & jumps or (read & smooth and node.op_type in _STEPS):
            jumps.update(node.output)
        elif read & smooth:
            for name in node.output:
                (smooth if types.get(name) in _SMOOTH else jumps).add(name)
    return [port.name for port in model.graph.output if port.name in jumps]


def run_model(model: ModelProto, names: Iterable[str], feeds: Iterable[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Run the model for each of the feeds: tensors by name; those of `names` that are no outputs become outputs."""
    names = list(dict.fromkeys(names))
    outputs = {port.name for port in model.graph.output}
    model.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in outputs)
    session = exact_session(model)
    return [dict(zip(names, session.run(names, fed), strict=True)) for fed in feeds]


def round_tensors(
    model: ModelProto,
    pieces: tuple[ReferencePiece, ...],
    stored: set[str],
    values: Sequence[Mapping[str, Array]],
    wide: Collection[str] = (),
) -> list[dict[str, Array]]:
    """Round to float16 the weights of pieces, each of their stored tensors, and values that a function hands to an operator fused with it.
    `model` is changed; returns more feeds.

    A scalar `_SCALE` must be fed as well.  Each piece reads its inputs from `values`, frame by frame; floats except `wide` are rounded.
    Vectors of weights are not rounded: a bias stays in float32, and batch normalisation is folded into weights before their rounding.
    """
    graph, piece_by_node = model.graph, {k: piece for piece in pieces for k in piece.nodes}
    renamed_inputs: dict[str, str] = {}  # input of a piece -> original tensor
    nodes, functions = [], {} if is_quantised(model) else _FUNCTIONS  # functions of integers are tables
    for k, node in enumerate(graph.node):
        nodes.append(node)
        if k not in piece_by_node:
            continue
        for i, name in enumerate(node.input):
            if name in piece_by_node[k].inputs:
                renamed_inputs[_OURS + "given." + name] = name
                node.input[i] = _OURS + "given." + name
        for i, name in enumerate(node.output):
            if name in stored or node.op_type in functions:
                node.output[i] = f"{_OURS}raw.{name}"
                nodes += _rounding(node.output[i], name, _LOST_BITS.get(node.op_type, 0))
    host = names_read(node for k, node in enumerate(graph.node) if k not in piece_by_node) | {port.name for port in graph.output}
    weight_names = names_read(graph.node[k] for k in piece_by_node) - host
    for tensor in graph.initializer:
        if tensor.name in weight_names and tensor.data_type == TensorProto.FLOAT and len(tensor.dims) > 1:
            tensor.CopyFrom(numpy_helper.from_array(round_to_float16(numpy_helper.to_array(tensor)), tensor.name))
    refill(model.graph.node, nodes)
    fed = [
        {
            new: frame[name] if frame[name].dtype != np.float32 or name in wide else round_to_float16(frame[name])
            for new, name in renamed_inputs.items()
        }
        for frame in values
    ]
    kinds = {name: (helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in fed[0].items()}
    kinds[_SCALE] = (TensorProto.FLOAT, ())
    graph.input.extend(helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in kinds.items())
    return fed


def _rounding(raw: str, name: str, lost_bits: int) -> list[NodeProto]:
    """Nodes that compute `name` from `raw`: a multiple of it, rounded to float16 less some bits."""
    times, product, excess, coarse, half, widened = (
        f"{_OURS}{step}.{name}" for step in ("times", "product", "over", "coarse", "half", "again")
    )
    nodes = [helper.make_node("Mul", [raw, _SCALE], [times])]
    if lost_bits:  # Veltkamp's splitting: x * (2^s + 1) less the excess leaves 24 - s bits of x, of which float16 has 11
        factor = numpy_helper.from_array(np.array(2.0 ** (24 - 11 + lost_bits) + 1, np.float32))
        nodes += [
            helper.make_node("Constant", [], [f"{product}.factor"], value=factor),
            helper.make_node("Mul", [times, f"{product}.factor"], [product]),
            helper.make_node("Sub", [product, times], [excess]),
            helper.make_node("Sub", [product, excess], [coarse]),
        ]
    return [
        *nodes,
        helper.make_node("Cast", [coarse if lost_bits else times], [half], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [half], [widened], to=TensorProto.FLOAT),
        helper.make_node("Div", [widened, _SCALE], [name]),
    ]


def _float_borders(model: ModelProto, pieces: tuple[ReferencePiece, ...], types: Mapping[str, int]) -> set[str]:
    """Floats of pieces next to quantisation: the NPU holds them in its data type, in any memory."""
    npu_nodes = {k for piece in pieces for k in piece.nodes}
    groups = fuse_groups(model)
    floats: set[str] = set()
    for node, members in zip(groups.model.graph.node, groups.members, strict=True):
        if members <= npu_nodes and node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            floats |= {name for name in (node.input[0], node.output[0]) if types.get(name) == TensorProto.FLOAT}
    return floats


def round_to_float16(values: Array) -> Array:
    """Round float32 values to float16; infinite beyond its range."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def find_out_of_range(
    model: ModelProto,
    pieces: tuple[ReferencePiece, ...],
    stored: set[str],
    floats: set[str],
    feeds: Sequence[Mapping[str, Array]],
    dtype: DataType,
) -> OutOfRange | None:
    """First tensor with a value outside `dtype`, and its largest magnitude.  `model` is changed.

    Stored tensors come first; then tensors between fused operators; then weights.  One run reduces every tensor to its largest
    magnitude.  feeds: inputs of each frame; every frame has a run of its own.
    """
    graph, order = model.graph, dict[str, None]()
    for piece in pieces:
        order |= dict.fromkeys(piece.inputs)
        order |= {name: None for k in piece.nodes for name in graph.node[k].output if name in floats}
    input_maxima = {name: _maximum([np.abs(frame[name]).max(initial=0.0) for frame in feeds]) for name in order if name in feeds[0]}
    computed = [name for name in order if name not in feeds[0]]
    # onnxruntime runs the last unread node first, with its inputs: in forward order all tensors would be alive at once
    for name in reversed(computed):
        graph.node.append(helper.make_node("Abs", [name], [_OURS + "abs." + name]))
        graph.node.append(helper.make_node("ReduceMax", [_OURS + "abs." + name], [_OURS + "max." + name], keepdims=0))
    read = names_read(graph.node[k] for piece in pieces for k in piece.nodes)
    weights = [tensor for tensor in graph.initializer if tensor.name in read and tensor.data_type == TensorProto.FLOAT]
    reduced = run_model(model, [_OURS + "max." + name for name in computed], feeds)
    maxima = input_maxima | {name: _maximum([frame[_OURS + "max." + name] for frame in reduced]) for name in computed}
    for name in sorted(order, key=lambda name: (maxima[name] < 1, name not in stored)):  # stable: in graph order
        if not holds(dtype, maxima[name]):
            return OutOfRange(name, maxima[name])
    for tensor in weights:
        peak = float(np.abs(numpy_helper.to_array(tensor)).max(initial=0.0))
        if not holds(dtype, peak):
            return OutOfRange(tensor.name, peak)
    return None


def _maximum(numbers: Sequence[Any]) -> float:
    """Maximum; NaN if any is NaN."""
    return float(np.max(numbers))


def split_frames(values: Mapping[str, Array], frames: int) -> list[dict[str, Array]]:
    """Split values of several frames along the first axis."""
    parts = {name: np.split(value, frames) if frames > 1 else [value] for name, value in values.items()}
    return [{name: slices[k] for name, slices in parts.items()} for k in range(frames)]


def join_frames(values: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Join values of frames: the inverse of `split_frames`."""
    first, *later_frames = values
    return {
        name: np.concatenate([value, *(frame[name] for frame in later_frames)]) if later_frames else value for name, value in first.items()
    }


def run_job(folder: Path) -> None:
    """Run the job of FOLDER/request.json."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    with np.load(folder / "feeds.npz", allow_pickle=False) as arrays:
        feeds = {name: arrays[f"arr_{i}"] for i, name in enumerate(request["feeds"])}
    model = onnx.load(request["model"])
    frames = frame_count(model)
    pieces = expand_bodies(model)
    # onnxruntime would round float16 after every operator and so hide the error to be measured; the NPU stores double as float32
    widen_model(model, (TensorProto.FLOAT16, TensorProto.DOUBLE))
    types, quantised = tensor_types(model), is_quantised(model)
    float_borders = FloatBorders(frozenset(), {})
    wide = set(request["wide"])
    if quantised:
        types = infer_types(model, types)
        float_borders = find_borders(model, {k: piece.inputs for piece in pieces for k in piece.nodes}, types, wide)
    floats = {name for name, kind in types.items() if kind == TensorProto.FLOAT}
    stored = (floats & (set(request["stored"]) | _float_borders(model, pieces, types))) - wide
    feeds = {
        name: array.astype(helper.tensor_dtype_to_np_dtype(types[name])) if array.dtype.kind == "f" else array
        for name, array in feeds.items()
    }
    by_frame = split_frames(feeds, frames)
    dtype = DataType[request["dtype"]]
    # one of three jobs: range of values, isolated integers, or reference outputs
    if request["job"] == "beyond":
        out_of_range = find_out_of_range(model, pieces, stored, floats, by_frame, dtype)
        _tell(folder, {"beyond": None if out_of_range is None else [out_of_range.tensor, str(out_of_range.largest)]})
        return
    if request["job"] == "integers":
        npu_nodes = [k for piece in pieces for k in piece.nodes]
        found_integers = collect_integers(model, npu_nodes, types, by_frame[0], folder / FLOATS)
        onnx.save(found_integers.model, folder / "out.onnx")
        np.savez(folder / "out.npz", *found_integers.arrays)
        _tell(folder, found_integers.answer)
        return
    # outputs of the model and of its pieces, and inputs of pieces, by onnxruntime
    names = list(dict.fromkeys([*(port.name for port in model.graph.output), *(name for piece in pieces for name in piece.outputs)]))
    jumps = stepped_outputs(model, pieces, types)
    logits = softmax_inputs(model, names)
    computed_inputs = [name for piece in pieces for name in piece.inputs if name not in feeds]
    outputs = run_model(model, [*names, *computed_inputs, *logits.values()], by_frame)
    scale = {name: _maximum([np.abs(frame[source]).max() for frame in outputs]) for name, source in logits.items()}
    fed_inputs = [name for piece in pieces for name in piece.inputs if name in feeds]
    split = [
        {name: frame[name] for name in dict.fromkeys([*names, *computed_inputs])} | {name: fed[name] for name in fed_inputs}
        for frame, fed in zip(outputs, by_frame, strict=True)
    ]
    values = join_frames(split)
    # samples of rounded outputs, each with another scale before rounding
    samples: list[dict[str, Array]] = []
    if dtype == DataType.float16 and pieces:
        rounded_feeds = [{**fed, **extra} for fed, extra in zip(by_frame, round_tensors(model, pieces, stored, split, wide), strict=True)]
        runs = run_model(model, names, ({**fed, _SCALE: np.array(sample, np.float32)} for sample in SAMPLES for fed in rounded_feeds))
        samples = [join_frames(runs[start : start + frames]) for start in range(0, len(runs), frames)]
    np.savez(folder / "out.npz", *values.values(), *(array for sample in samples for array in sample.values()))
    report = {"values": list(values), "rounded": [list(sample) for sample in samples], "logits_scale": scale, "stepped": jumps}
    _tell(
        folder,
        {**report, "exact": sorted(float_borders.exact), "steps": dict(float_borders.steps), "quantised": quantised, "frames": frames},
    )


def _tell(folder: Path, report: Mapping[str, Any]) -> None:
    (folder / "told.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    try:
        run_job(Path(sys.argv[1]))
    except BadInputError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NO_BODY)
    except Exception as error:  # noqa: BLE001  onnxruntime raises many types; the parent says in one line what it was
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        sys.exit(1)
