"""Inference of shapes, and folding of small values, at compile time.

Exporters write a dynamic dimension as Shape, Gather, Unsqueeze and Concat before a Reshape, a Slice or an Expand.  With known input shapes
all of these are constants.  onnx's inference propagates some of these chains; here every node of constants is folded, and the shapes after
it are inferred again, in one walk over the nodes.  Folded values count against the budget of the model's constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from compiler.frontend.onnx_io import onnx_sandbox
from compiler.frontend.onnx_io.attributes import attributes, known_dims, known_shapes
from compiler.frontend.onnx_io.fold import evaluate_node, fold_node
from compiler.frontend.onnx_io.inline import with_bodies
from compiler.frontend.onnx_io.memory_budget import ByteBudget, can_follow, memory_limit
from compiler.frontend.onnx_io.scales import MS, UNARY
from simulator.onnx_names import names_read, refill

Array = NDArray[Any]
_AS_THEIR_INPUT = (
    "BiasGelu", "FastGelu", "Gelu", "GroupNorm", "Inverse", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Trilu",
)  # fmt: skip
# operator without a rule in onnx -> an operator with the same output shapes, and positions of its inputs
STAND_INS: dict[tuple[str, str], tuple[str, slice]] = {
    ("", "GroupNormalization"): ("Identity", slice(1)),
    **{(MS, op): ("Identity", slice(1)) for op in _AS_THEIR_INPUT},
    **{(MS, f"QLinear{op}"): (op, slice(1)) for op in UNARY},
    (MS, "DynamicQuantizeMatMul"): ("MatMul", slice(2)),
    (MS, "FusedConv"): ("Conv", slice(2)),
    (MS, "FusedGemm"): ("Gemm", slice(2)),
    (MS, "FusedMatMul"): ("MatMul", slice(2)),
    (MS, "QGemm"): ("Gemm", slice(0, 4, 3)),
    (MS, "QLinearAdd"): ("Add", slice(0, 4, 3)),
    (MS, "QLinearConcat"): ("Concat", slice(2, None, 3)),
    (MS, "QLinearMul"): ("Mul", slice(0, 4, 3)),
}
_OTHER_AXES = frozenset({"channels_last", "transA", "transB", "transBatchA", "transBatchB"})  # attributes that a stand-in may not have


def infer(skeleton: ModelProto, model_bytes: int, where: str) -> ModelProto:
    """Skeleton with the shapes from onnx's inference.  model_bytes: size of the whole model.

    Raises `LibraryError` for contradictory shapes, and BadInputError (see `onnx_sandbox.check`).
    """
    inferred = onnx_sandbox.infer(skeleton, model_bytes, where, values=False)
    if can_follow(inferred.graph, ByteBudget(memory_limit(model_bytes) // 2)):
        # vectors that are no shapes may contradict each other when propagated as shapes
        with suppress(onnx_sandbox.LibraryError):
            inferred = onnx_sandbox.infer(skeleton, model_bytes, where, values=True)
    return inferred


def infer_and_fold(skeleton: ModelProto, max_values: int, model_bytes: int, where: str) -> ModelProto:
    """Skeleton with all inferred shapes, folded constants as initialisers, and inlined nodes (`compiler.frontend.onnx_io.inline`).

    max_values: size limit of a folded tensor.  Raises as `infer`, and InferenceError.
    """
    model, budget = skeleton, ByteBudget(memory_limit(model_bytes) // 2)
    while True:
        model = infer(model, model_bytes, where)
        walk = _Walk(model, max_values, budget)
        for node in model.graph.node:
            walk.visit(node)
        if walk.computed or walk.typed:
            walk.write()
        elif (expanded := with_bodies(model, walk.constants, budget, model_bytes, where)) is not None:
            model = expanded
        else:
            return _with_sizes_of_runtime(model, max_values, budget)


def _with_sizes_of_runtime(model: ModelProto, max_values: int, budget: ByteBudget) -> ModelProto:
    """Correct, in place, the shapes where onnxruntime deviates from onnx's rules, and those that follow from them."""
    walk, changed = _Walk(model, max_values, budget), set[str]()
    for node in model.graph.node:
        rule, shape = SIZES.get(node.op_type), walk.shapes.get(node.input[0] if node.input else "")
        size = None if rule is None or shape is None else rule(node, shape, walk)
        if size == walk.shapes.get(node.output[0]) or (size is None and changed.isdisjoint(node.input)):
            continue
        for name in node.output:
            walk.shapes.pop(name, None)
        changed.update(node.output)
        if size is None:
            walk.visit(node)
        else:
            walk.take(node.output[0], onnx.helper.make_tensor_type_proto(walk.types[node.input[0]].tensor_type.elem_type, size))
    if changed:
        walk.computed.clear()
        walk.write()
    return model


def _size_of_windows(node: NodeProto, shape: tuple[int, ...], walk: _Walk) -> tuple[int, ...] | None:
    """Output shape with ceil_mode: windows that start in the trailing padding are dropped; auto_pad as without ceil_mode."""
    values, axes = attributes(node), len(shape) - 2
    kernel, (strides, dilations) = values.get("kernel_shape", ()), (values.get(key, [1] * axes) for key in ("strides", "dilations"))
    if not values.get("ceil_mode", 0) or len(kernel) != axes:
        return None
    if values.get("auto_pad", "NOTSET").startswith("SAME"):
        return *shape[:2], *(-(-size // stride) for size, stride in zip(shape[2:], strides, strict=True))
    pads, sizes = values.get("pads", [0] * 2 * axes), []
    for i, size in enumerate(shape[2:]):
        count = -(-(size + pads[i] + pads[i + axes] - (kernel[i] - 1) * dilations[i] - 1) // strides[i]) + 1
        sizes.append(count - ((count - 1) * strides[i] >= size + pads[i]))
    return *shape[:2], *sizes


def _size_by_scales(node: NodeProto, shape: tuple[int, ...], walk: _Walk) -> tuple[int, ...] | None:
    """Output shape of Resize by scales: floor of the float32 product."""
    scales = walk.constants.get([*node.input, "", ""][2], np.zeros(0))
    if scales.size != len(shape) or "axes" in attributes(node) or not np.isfinite(scales).all():
        return None
    return tuple(math.floor(np.float32(size) * np.float32(scale)) for size, scale in zip(shape, scales, strict=True))


def _size_given(node: NodeProto, shape: tuple[int, ...], walk: _Walk) -> tuple[int, ...] | None:
    """Output shape of a transposed convolution by `output_shape`: onnx's rule drops axes after one smaller than the input's."""
    values, weights = attributes(node), walk.shapes.get(node.input[1])
    if weights is None or len(values.get("output_shape", ())) != len(shape) - 2:
        return None
    return shape[0], weights[1] * values.get("group", 1), *values["output_shape"]


SIZES: dict[str, Callable[[NodeProto, tuple[int, ...], _Walk], tuple[int, ...] | None]] = {
    "AveragePool": _size_of_windows,
    "ConvTranspose": _size_given,
    "MaxPool": _size_of_windows,
    "QLinearAveragePool": _size_of_windows,
    "Resize": _size_by_scales,
}


def _of_kind(kind: TypeProto, elem_type: int) -> TypeProto:
    copy = deepcopy(kind)
    copy.tensor_type.elem_type = elem_type
    return copy


class _Walk:
    """Walk over the nodes.  constants: known values.  computed: constants from nodes.  typed: tensors with newly inferred shapes."""

    def __init__(self, model: ModelProto, max_values: int, budget: ByteBudget) -> None:
        self.model, self.most, self.budget = model, max_values, budget
        self.constants: dict[str, Array] = {entry.name: numpy_helper.to_array(entry) for entry in model.graph.initializer}
        self.computed: dict[str, Array] = {}
        ports = (*model.graph.output, *model.graph.input, *model.graph.value_info)
        self.types: dict[str, TypeProto] = {entry.name: entry.type for entry in ports}
        self.types |= {t.name: onnx.helper.make_tensor_type_proto(t.data_type, list(t.dims)) for t in model.graph.initializer}
        inputs = {entry.name for entry in (*model.graph.input, *model.graph.initializer)}
        # onnx does not infer outputs that no node produces
        self.typed = {
            entry.name: self.types[entry.name] for entry in model.graph.output if entry.name in inputs and known_dims(entry.type) is None
        }
        self.shapes = known_shapes(model.graph)
        self.versions = {entry.domain: entry.version for entry in model.opset_import}
        self.outputs = {entry.name for entry in model.graph.output}

    def visit(self, node: NodeProto) -> None:
        stand_in = STAND_INS.get((node.domain.removeprefix("ai.onnx"), node.op_type))
        standard = node.domain in ("", "ai.onnx")
        if stand_in is not None or (standard and any(name and name not in self.shapes for name in node.output)):
            self._type(node, stand_in)
        values = self._values(node) if standard else {}
        self.constants |= values
        # model outputs stay outputs of nodes
        if node.op_type != "Constant" and values and self.outputs.isdisjoint(node.output):
            self.computed |= values

    def _values(self, node: NodeProto) -> dict[str, Array]:
        if not node.output or any(name and math.prod(self.shapes.get(name, (self.most,))) >= self.most for name in node.output):
            return {}
        if node.op_type == "DequantizeLinear":
            return {}  # a weight or a bias, whose integers are read directly (`compiler.frontend.handlers.qdq_fusion`)
        values = attributes(node)
        if node.op_type == "Shape" and node.input[0] in self.shapes:
            dims = self.shapes[node.input[0]]
            return {node.output[0]: np.asarray(dims[values.get("start", 0) : values.get("end", len(dims))], np.int64)}
        if node.op_type == "Size" and node.input[0] in self.shapes:
            return {node.output[0]: np.asarray(math.prod(self.shapes[node.input[0]]), np.int64)}
        value = fold_node(node, values, self.constants, self.budget)
        if value is not None:
            return {node.output[0]: value}
        return evaluate_node(node, self.constants, self.shapes, self.model.opset_import, self.budget)

    def _type(self, node: NodeProto, stand_in: tuple[str, slice] | None) -> None:
        """Infer the output types of a node by onnx's rule, with the values that are known here."""
        if names_read([node]) - self.types.keys():
            return
        if stand_in is None:
            output_types = self._inferred(node, self.types)
        else:
            # the rule is for floats, and only its shape is used
            op_type, inputs = stand_in
            plain = NodeProto(op_type=op_type, input=node.input[inputs], output=node.output[:1])
            allowed = onnx.defs.get_schema(op_type).attributes
            plain.attribute.extend(attribute for attribute in node.attribute if attribute.name in allowed)
            if not plain.input or any(value for key, value in attributes(node).items() if key in _OTHER_AXES and key not in allowed):
                return
            first = self.types[plain.input[0]].tensor_type.elem_type
            output_types = {}
            with suppress(onnx.shape_inference.InferenceError):  # errors of the stand-in are ignored; the operator's handler reports them
                output_types = self._inferred(plain, {name: _of_kind(self.types[name], TensorProto.FLOAT) for name in plain.input})
            output_types = {name: _of_kind(kind, first) for name, kind in output_types.items()}
        for name, kind in output_types.items():
            if stand_in is not None and known_dims(kind) not in (None, self.shapes.get(name)):
                self.shapes.pop(name, None)  # onnx checks recorded shapes only against its own rules
            self.take(name, kind)

    def take(self, name: str, kind: TypeProto) -> None:
        """Set the type of a tensor, unless its shape is known."""
        self.types[name], dims = kind, known_dims(kind)
        if name not in self.shapes and dims is not None:
            self.shapes[name], self.typed[name] = dims, kind

    def _inferred(self, node: NodeProto, types: Mapping[str, TypeProto]) -> dict[str, TypeProto]:
        try:
            schema = onnx.defs.get_schema(node.op_type, max(self.versions.get("", 1), self.versions.get("ai.onnx", 1)), node.domain)
        except onnx.defs.SchemaError:
            return {}
        constant_inputs: dict[str, TensorProto] = {
            name: numpy_helper.from_array(np.asarray(self.constants[name]), name) for name in node.input if name in self.constants
        }
        output_types: dict[str, TypeProto] = onnx.shape_inference.infer_node_outputs(
            schema,
            node,
            {name: types[name] for name in names_read([node])},
            constant_inputs,
            opset_imports=list(self.model.opset_import),
            ir_version=self.model.ir_version,
        )
        return output_types

    def write(self) -> None:
        """Write folded constants and new shapes to the model, in place."""
        graph = self.model.graph
        nodes = [node for node in graph.node if not all(name in self.computed for name in node.output)]
        read = names_read(nodes) | self.outputs
        live_nodes = [node for node in nodes if node.op_type != "Constant" or not read.isdisjoint(node.output)]
        names = {name for node in live_nodes for name in node.output}
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), name) for name, value in self.computed.items() if name in read and name not in names
        )
        infos = {tensor.name: tensor for tensor in graph.value_info if tensor.name in names}
        for tensor in graph.output:
            if tensor.name in self.typed:
                tensor.type.CopyFrom(self.typed[tensor.name])
        for name, kind in self.typed.items():
            if name in names and name not in self.outputs:
                infos[name] = onnx.helper.make_value_info(name, kind)
        refill(graph.node, live_nodes)
        refill(graph.value_info, infos.values())
