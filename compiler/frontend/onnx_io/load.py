"""Loader of ONNX models: safe, validated, with static shapes.

`load_model` returns a model that passes the checker, has static shapes and folded shape computations
(`compiler.frontend.onnx_io.shape_inference`), no initialiser among its inputs, and an opset of at least `OPSET` where convertible.
Everything else is a `BadInputError` of one line: the value, its location, accepted values.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from graphlib import TopologicalSorter
from itertools import count
from operator import attrgetter
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.external_data_helper import _get_all_tensors, load_external_data_for_tensor

from compiler.frontend.onnx_io import onnx_sandbox
from compiler.frontend.onnx_io.attributes import attributes, check_attributes, known_dims, known_shapes, one_line, opset_of
from compiler.frontend.onnx_io.inline import with_bodies
from compiler.frontend.onnx_io.large_constants import LARGE, LargeConstant, ModelWithoutWeights, attach, detach, large_constants
from compiler.frontend.onnx_io.memory_budget import ByteBudget, tensor_bytes
from compiler.frontend.onnx_io.onnx_sandbox import LibraryError
from compiler.frontend.onnx_io.protobuf_wire import Data, tensor_pieces
from compiler.frontend.onnx_io.random_weights import draw_weights
from compiler.frontend.onnx_io.scales import MS
from compiler.frontend.onnx_io.shape_inference import infer_and_fold
from compiler.frontend.tflite.to_onnx import TFLITE, model_of_tflite
from simulator.npu.errors import BadInputError
from simulator.onnx_kinds import CONVERTED, FLOATS, widen_model, widen_tensor
from simulator.onnx_names import DOMAIN, SEAL_KEY, fresh_name, names_read, refill


def add_zero_points(model: ModelProto) -> None:
    """Add zero points of 0, in place, to QuantizeLinear nodes that give their type by `output_dtype` (opset 21 and later).

    Following DequantizeLinear nodes get the same.  Then zero points define the types, here and in the compiled file: onnxruntime assumes
    uint8 without one when it groups nodes, and drops the attribute when it converts int8 to uint8.  Nodes with a scale of unknown shape
    stay unchanged.
    """
    shapes, taken = known_shapes(model.graph), {*names_read(model.graph.node), *(name for node in model.graph.node for name in node.output)}
    zero_point_of: dict[str, str] = {}  # quantised tensor -> its zero point
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        shape, missing = shapes.get(node.input[1]), not any(node.input[2:])
        if node.op_type == "DequantizeLinear":
            if missing and node.input[0] in zero_point_of and shapes[zero_point_of[node.input[0]]] == shape:
                node.input[2:] = [zero_point_of[node.input[0]]]
            continue
        dtype = int(attributes(node).get("output_dtype", 0))
        if not dtype or (missing and shape is None):
            continue
        refill(node.attribute, [attribute for attribute in node.attribute if attribute.name != "output_dtype"])
        if missing and shape is not None:
            name = fresh_name(f"{node.output[0]}.zero_point", taken)
            taken.add(name)
            model.graph.initializer.append(helper.make_tensor(name, dtype, shape, [0] * math.prod(shape)))
            zero_point_of[node.output[0]], shapes[name] = name, shape
            node.input[2:] = [name]


OPSET = 17  # minimum opset of the translation; newer models are not converted
RESIZE_WITH_MODES = 11  # first opset in which Resize has coordinate modes
MAX_PROTO_BYTES = 2**31 - 1  # limit of one message
MAX_VALUES = 2**30  # limit of one tensor: 4 GiB of float32
_WIDENED = (TensorProto.BFLOAT16,)
_NUMPY_TYPES = frozenset(onnx.helper.get_all_tensor_dtypes()) - {TensorProto.STRING}
_MISFITS = (LibraryError, onnx.shape_inference.InferenceError, ValueError, RuntimeError)
_SOURCE_LINE = re.compile(r"^(Fatal error: |/\S+:\d+ .*?\) (?=[A-Z]))")
_dims = attrgetter("type.tensor_type.shape.dim")  # dimensions of an input: with a size, a name, or neither
Shapes = Mapping[str, Sequence[int]]


def load_model(
    model: str | Path | bytes | ModelProto, shapes: Shapes | None = None, *, random_weights: int | None = None, where: str | None = None
) -> ModelProto:
    """Model from `load`, with all weights inside."""
    return load(model, shapes, random_weights=random_weights, where=where).filled()


def load(
    model: str | Path | bytes | ModelProto, shapes: Shapes | None = None, *, random_weights: int | None = None, where: str | None = None
) -> ModelWithoutWeights:
    """Load, validate and clean an ONNX model: a path, the bytes of a file, or a model (which is not changed).

    shapes: input -> its dimensions, or name of a dimension -> [its size], of dynamic shapes.  random_weights: a seed, replaces every weight
    (`compiler.frontend.onnx_io.random_weights`).  where: name of the model in errors, by default the path.  Raises BadInputError.
    """
    onnx_sandbox.start()
    if isinstance(model, str | Path):
        where, model = where or str(model), _of_file(Path(model), random_weights is not None)
    elif isinstance(model, bytes):
        model = _parsed(model, where or "model")
    loaded = prepare_hollow(model, shapes, where or "model")
    return loaded if random_weights is None else draw_weights(loaded, random_weights)


def _of_file(path: Path, random: bool) -> ModelProto:
    """Model of a file, with external data.  random: weights without values become zeros, to be drawn later.  Raises BadInputError."""
    if not path.exists():
        raise BadInputError(f"{path}: no such file")
    if not path.is_file():
        raise BadInputError(f"{path}: not a file, expected an ONNX model")
    # sizes are checked before anything is read into memory
    size = path.stat().st_size
    if size == 0:
        raise BadInputError(f"{path}: the file is empty, expected an ONNX model")
    _check_total(size, str(path))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if path.suffix == TFLITE:
        return model_of_tflite(data, str(path))
    model = _parsed(data, str(path))
    try:
        tensors = list(_get_all_tensors(model))
        _check_total(size + sum(_beyond_the_file(tensor, path.parent) for tensor in tensors), str(path))
        for tensor in tensors:
            if not _lacks_data(tensor, path.parent):
                _load_data(tensor, path)
            elif random:
                tensor.data_location, tensor.raw_data = TensorProto.DEFAULT, bytes(_size_bytes(tensor))
                del tensor.external_data[:]
            else:
                raise BadInputError(f"{path}: weight {tensor.name!r}: no values here or as external data; --random-weights SEED draws some")
    except (onnx.checker.ValidationError, OSError, ValueError, RuntimeError) as error:
        raise BadInputError(f"{path}: external data: {one_line(error)}") from None
    return model


def _load_data(tensor: TensorProto, path: Path) -> None:
    """Load external data by onnx's loader, which refuses links.

    A symbolic link to a file beside the model's target, as in Hugging Face's cache, is resolved for it; a file with several hard links is
    read here.  All other links stay refused.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    entries, folder = {entry.key: entry for entry in tensor.external_data}, path.parent
    real = (folder / entries["location"].value).resolve() if "location" in entries else folder
    if real.is_file() and real.parent in (path.resolve().parent, folder.resolve()):
        folder, entries["location"].value = real.parent, real.name
        if real.stat().st_nlink > 1:
            offset, length = (int(entries[key].value) if key in entries else None for key in ("offset", "length"))
            with real.open("rb") as file:
                file.seek(offset or 0)
                tensor.raw_data = file.read(length)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
            return
    load_external_data_for_tensor(tensor, str(folder))


def _lacks_data(tensor: TensorProto, folder: Path) -> bool:
    """Whether a float weight has no values: stripped, or in a missing file."""
    if tensor.data_location == TensorProto.EXTERNAL:
        has_values = all((folder / entry.value).exists() for entry in tensor.external_data if entry.key == "location")
    else:
        has_values = any(field.name.endswith("_data") for field, _ in tensor.ListFields())
    return tensor.data_type in FLOATS and _size_bytes(tensor) > 0 and not has_values


def _parsed(data: bytes, where: str) -> ModelProto:
    try:
        model = onnx.load_model_from_string(data, format="protobuf")
    except (DecodeError, ValueError) as error:
        raise BadInputError(f"{where}: not an ONNX file, or cut short ({one_line(error)})") from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise BadInputError(f"{where}: not an ONNX model: it has no graph")
    if any(entry.key == SEAL_KEY for entry in model.metadata_props) or any(node.domain == DOMAIN for node in model.graph.node):
        raise BadInputError(f"{where}: is compiled already, by tilefarm; expected the model that it was made of")
    return model


def _check_total(size: int, where: str) -> None:
    if size > MAX_PROTO_BYTES:
        raise BadInputError(
            f"{where}: {size:,} bytes with all weights; at most {MAX_PROTO_BYTES:,} are accepted, in the file and beside it together "
            f"(protobuf's limit for a model in memory)"
        )


def _beyond_the_file(tensor: TensorProto, folder: Path) -> int:
    """Bytes of a constant in memory beyond those in the file, by its header: its external data, and the increase by widening.

    Raises ValueError for an offset or length that is no number.
    """
    extra_bytes = _size_bytes(tensor) if _lacks_data(tensor, folder) else 0
    if tensor.data_location == TensorProto.EXTERNAL:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        data_path = folder / entries.get("location", "")
        remaining_bytes = max(0, data_path.stat().st_size - int(entries.get("offset") or 0)) if data_path.is_file() else 0
        extra_bytes = max(int(entries.get("length") or remaining_bytes), _size_bytes(tensor))
    return extra_bytes + (_size_bytes(tensor) if tensor.data_type in _WIDENED else 0)


def _size_bytes(tensor: TensorProto) -> int:
    """Size by shape; 0 for an invalid shape or type, which is reported later."""
    if min(tensor.dims, default=0) < 0 or tensor.data_type not in _NUMPY_TYPES:
        return 0
    return tensor_bytes(tensor)


def check_session(model: ModelProto, where: str) -> None:
    """Check that onnxruntime loads a model, hollow or not: it runs the host nodes and gives the reference results.

    Large weights are inputs there.  Raises BadInputError with onnxruntime's message.
    """
    skeleton, large = detach(model, LARGE)
    try:
        onnx_sandbox.create_session(skeleton, sum(map(tensor_bytes, large.values())), where)
    except LibraryError as error:
        text = " ".join(str(error).split()).rpartition("[ONNXRuntimeError]")[2].split(" : ")[-1]
        why = one_line(_SOURCE_LINE.sub("", text))
        raise BadInputError(f"{where}: onnxruntime, which checks what is compiled, does not load it: {why}") from None


def prepare(model: ModelProto, shapes: Shapes | None = None, where: str = "model") -> ModelProto:
    """Model from `prepare_hollow`, with all weights inside."""
    return prepare_hollow(model, shapes, where).filled()


def prepare_hollow(model: ModelProto, shapes: Shapes | None = None, where: str = "model") -> ModelWithoutWeights:
    """Validate a copy of a model, and fix its input shapes and opset for the translation; no file is read."""
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in _get_all_tensors(model)):
        raise BadInputError(f"{where}: external data: expected all weights in a model that is no file, or the path of its file")
    try:
        skeleton, tensors = detach(model, LARGE)
        if widen_model(skeleton, _WIDENED) | any(tensor.data_type in _WIDENED for tensor in tensors.values()):
            tensors = {name: widen_tensor(tensor, _WIDENED) for name, tensor in tensors.items()}
            skeleton.metadata_props.add(key=CONVERTED, value="bfloat16 to float32")
        large = large_constants(tensors)
        total = sum(_checked_bytes(*constant) for constant in large.values())
        total += sum(_checked_bytes(constant) for constant in skeleton.graph.initializer)
        _check_total(total + skeleton.ByteSize(), where)
        _drop_initialisers_from_inputs(skeleton)
        _as_checked(skeleton)
        _fix_inputs(skeleton, shapes or {}, where, large.keys(), total)
        onnx_sandbox.check(_with_shapes(skeleton), total, where)
    except EncodeError as error:
        raise BadInputError(f"{where}: too large for protobuf ({one_line(error)})") from None
    except (LibraryError, onnx.checker.ValidationError, KeyError, TypeError, ValueError) as error:
        raise BadInputError(f"{where}: not a valid ONNX model: {one_line(error)}") from None
    check_attributes(model, where)
    if shapes:
        _forget_shapes(skeleton)
    if skeleton.functions:  # the converter ignores function bodies
        skeleton = with_bodies(skeleton, {}, ByteBudget(0), total, where) or skeleton
    skeleton = _convert_opset(skeleton, total, where)
    try:
        inferred = _infer_shapes(skeleton, total, where)
    except _MISFITS as error:
        raise BadInputError(f"{where}: shapes do not fit together: {one_line(error)}") from None
    _check_results(inferred, where)
    _name_apart(inferred)
    add_zero_points(inferred)
    return attach(inferred, large)


def _infer_shapes(skeleton: ModelProto, total: int, where: str) -> ModelProto:
    """Model with inferred shapes; recorded shapes are dropped where they contradict the inputs, as onnxruntime ignores them too."""
    try:
        return infer_and_fold(skeleton, LARGE, total, where)
    except _MISFITS as error:
        _forget_shapes(skeleton)
        try:
            return infer_and_fold(skeleton, LARGE, total, where)
        except _MISFITS:
            raise error from None


def _outputs_without_shape(model: ModelProto) -> list[ValueInfoProto]:
    """Outputs without a shape."""
    tensors = (output for output in model.graph.output if output.type.WhichOneof("value") in (None, "tensor_type"))
    return [output for output in tensors if not output.type.tensor_type.HasField("shape")]


def _with_shapes(model: ModelProto) -> ModelProto:
    """Copy for the checker, which requires a shape of every output: [] where it is inferred later."""
    copy = deepcopy(model)
    for output in _outputs_without_shape(copy):
        output.type.tensor_type.elem_type = output.type.tensor_type.elem_type or TensorProto.FLOAT
        output.type.tensor_type.shape.SetInParent()
    return copy


def _check_results(model: ModelProto, where: str) -> None:
    for tensor in _outputs_without_shape(model):
        raise BadInputError(f"{where}: output {tensor.name!r} has no shape; expected one, whose dimensions may be names")
    for tensor in model.graph.output:
        if (kind := tensor.type.WhichOneof("value")) != "tensor_type":
            raise BadInputError(f"{where}: output {tensor.name!r} is a {kind}; expected a tensor, as ConcatFromSequence makes one")
    for tensor in (*model.graph.value_info, *model.graph.output):
        dims = [d.dim_value for d in _dims(tensor)]
        if math.prod(dims) > MAX_VALUES:
            raise BadInputError(f"{where}: tensor {tensor.name!r} of shape {dims} has more than {MAX_VALUES} values")


def _name_apart(model: ModelProto) -> None:
    """Make node names unique, in place; onnxruntime refuses equal names."""
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    for node in model.graph.node:
        if node.name and node.name in seen:
            node.name = next(name for k in count(2) if (name := f"{node.name}.{k}") not in taken)
            taken.add(node.name)
        seen.add(node.name)


def model_digest(model: ModelProto) -> str:
    """Digest of the model's bytes, 32 hex digits."""
    skeleton, large = detach(model, LARGE)
    return digest_of(skeleton, large_constants(large))


def digest_of(skeleton: ModelProto, large: Mapping[str, LargeConstant]) -> str:
    """Digest as `model_digest`, of a skeleton and its large constants."""
    digest = hashlib.blake2b(skeleton.SerializeToString(deterministic=True), digest_size=16)
    for tensor, data in large.values():
        for piece in tensor_pieces(tensor, data):
            digest.update(piece)
    return digest.hexdigest()


def _checked_bytes(tensor: TensorProto, data: Data | None = None) -> int:
    """Size of a constant; ValidationError where its data do not fit its shape (the checker would serialise the tensor for that).

    data: raw data, where the caller has a copy.
    """
    if min(tensor.dims, default=0) < 0:
        raise onnx.checker.ValidationError(f"initializer {tensor.name!r} has shape {list(tensor.dims)}")
    size = tensor_bytes(tensor)
    if tensor.HasField("raw_data") and not tensor.float_data and not tensor.int32_data and not tensor.double_data:
        length = len(tensor.raw_data if data is None else data)
        if length != size:
            raise onnx.checker.ValidationError(f"initializer {tensor.name!r} {list(tensor.dims)} has {length} bytes, not {size}")
    else:
        onnx.checker.check_tensor(tensor)
        onnx.numpy_helper.to_array(tensor)  # ValueError where the number of values is not the shape's
    return size


def _as_checked(model: ModelProto) -> None:
    """Add, in place, a graph name and a topological order of nodes, which the checker requires and onnxruntime does not.

    SimplifiedLayerNormalization, which onnxruntime has in ONNX's domain, goes to the domain of its other operators.  Raises CycleError.
    """
    model.graph.name = model.graph.name or "model"
    for node in model.graph.node:
        if node.op_type == "SimplifiedLayerNormalization" and node.domain in ("", "ai.onnx"):
            _to_runtime(model, node)
    makers = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
    reads = [sorted({makers[name] for name in names_read([node]) if name in makers}) for node in model.graph.node]
    if any(reads[i] and reads[i][-1] >= i for i in range(len(reads))):
        refill(model.graph.node, [model.graph.node[i] for i in TopologicalSorter(dict(enumerate(reads))).static_order()])


def _to_runtime(model: ModelProto, node: NodeProto) -> None:
    """Bring a node over the last axis, which computes in float32, to onnxruntime's domain; other nodes stay."""
    values = attributes(node)
    if values.get("axis", -1) != -1 or values.get("stash_type", 1) != 1:
        return
    node.domain = MS
    refill(node.attribute, [attribute for attribute in node.attribute if attribute.name == "epsilon"])
    if all(info.domain != MS for info in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MS, 1))


def _drop_initialisers_from_inputs(model: ModelProto) -> None:
    """Drop initialisers from the inputs, in place: before IR 4 all were listed there, and an input cannot be folded."""
    constants = {tensor.name for tensor in model.graph.initializer} | {tensor.values.name for tensor in model.graph.sparse_initializer}
    refill(model.graph.input, (tensor for tensor in model.graph.input if tensor.name not in constants))
    model.ir_version = max(model.ir_version, 4)


def _fix_inputs(model: ModelProto, shapes: Shapes, where: str, constants: Collection[str], model_bytes: int) -> None:
    """Set all input dimensions, in place.  shapes: shapes of inputs, or sizes of named dimensions; equal names have equal sizes."""
    inputs = {port.name: port for port in model.graph.input if port.name not in constants}
    dim_names = dict.fromkeys(dim.dim_param for port in inputs.values() for dim in _dims(port) if dim.dim_param)
    sizes: dict[str, int] = {}
    # a given input shape also fixes the named dimensions that it contains
    for name, size_list in shapes.items():
        if name in inputs:
            sizes = {dim.dim_param: int(size) for dim, size in zip(_dims(inputs[name]), size_list, strict=False) if dim.dim_param} | sizes
            _set_shape(inputs[name], [int(size) for size in size_list], where)
        elif name in dim_names and len(size_list) == 1 and size_list[0] > 0:
            sizes[name] = int(size_list[0])
        else:
            choices = f"inputs: {', '.join(inputs) or 'none'}; dimensions, of one number of at least 1: {', '.join(dim_names) or 'none'}"
            raise BadInputError(f"{where}: --shape {name}={','.join(map(str, size_list))}: no such input or dimension; {choices}")
    for port in inputs.values():
        if not port.type.HasField("tensor_type") or not port.type.tensor_type.HasField("shape"):
            raise BadInputError(f"{where}: input {port.name!r} has no shape; give one with --shape {port.name}=1,3,224,224")
        for axis, dim in enumerate(_dims(port)):
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
            if dim.HasField("dim_value") and dim.dim_value <= 0:
                raise BadInputError(f"{where}: input {port.name!r} has {dim.dim_value} on axis {axis}; every dimension is at least 1")
    missing = [port for port in inputs.values() if known_dims(port.type) is None]
    if missing:
        shown = ", ".join(f"{port.name!r} [{','.join(d.dim_param or str(d.dim_value or '?') for d in _dims(port))}]" for port in missing)
        options = _suggested_options(model, {port.name for port in missing}, where, model_bytes)
        raise BadInputError(f"{where}: inputs of dynamic shapes: {shown}; give them with {options}")


def _suggested_options(model: ModelProto, missing: Collection[str], where: str, model_bytes: int) -> str:
    """Command line options that may work: 224 for images, else 1; dimensions of outputs as inferred from these."""
    trial, sizes = deepcopy(model), dict[str, list[int]]()
    shapes = {name: shape for name, shape in known_shapes(model.graph).items() if len(shape) > 2}
    convolutions = [node for node in model.graph.node if node.op_type == "Conv" and [*node.input, "", ""][1] in shapes]
    channels = {node.input[0]: shapes[node.input[1]][1] * int(attributes(node).get("group", 1)) for node in convolutions}
    for port in [port for port in trial.graph.input if port.name in missing]:
        dims = _dims(port)
        image = port.name in channels or (len(dims) == 4 and dims[1].dim_value == 3)
        usual = (1, channels.get(port.name, 3)) + (224,) * (len(dims) - 2) if image else (1,) * len(dims)
        has_names = all(dim.dim_param or dim.dim_value for dim in dims)
        for dim, size in zip(dims, usual, strict=True):
            dim.dim_value = dim.dim_value or (sizes.setdefault(dim.dim_param, [size])[0] if has_names else size)
        if not has_names:
            sizes[port.name] = [dim.dim_value for dim in dims]
    _forget_shapes(trial)
    with suppress(BadInputError, *_MISFITS):
        onnx_sandbox.check(_with_shapes(trial), model_bytes, where)
        for before, after in zip(model.graph.output, infer_and_fold(trial, LARGE, model_bytes, where).graph.output, strict=True):
            pairs = zip(_dims(before), known_dims(after.type) or (), strict=False)
            sizes |= {dim.dim_param: [size] for dim, size in pairs if dim.dim_param in sizes}
    return " ".join(f"--shape {shlex.quote(name + '=' + ','.join(map(str, size_list)))}" for name, size_list in sizes.items())


def _forget_shapes(model: ModelProto) -> None:
    """Drop inferred shapes, in place: they belong to the old input sizes."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")


def _set_shape(item: ValueInfoProto, sizes: list[int], where: str) -> None:
    current_dims = list(_dims(item))
    option = f"{where}: --shape {item.name}={','.join(map(str, sizes))}"
    if item.type.tensor_type.HasField("shape") and len(current_dims) != len(sizes):
        raise BadInputError(f"{option}: the model has {len(current_dims)} dimensions there")
    if min(sizes, default=1) < 1:
        raise BadInputError(f"{option}: every dimension is at least 1")
    for axis, (dim, size) in enumerate(zip(current_dims, sizes, strict=False)):
        if dim.HasField("dim_value") and axis > 0 and dim.dim_value != size:
            raise BadInputError(f"{where}: --shape {item.name}: axis {axis} is {dim.dim_value} in the model, not {size}")
    item.type.tensor_type.ClearField("shape")
    for size in sizes:
        item.type.tensor_type.shape.dim.add().dim_value = size


def _convert_opset(model: ModelProto, model_bytes: int, where: str) -> ModelProto:
    """Model converted to OPSET; unchanged where the converter fails (the translation supports old forms of operators)."""
    if opset_of(model) >= OPSET:
        return model
    try:  # the converter believes recorded shapes, and writes other nodes by them
        onnx_sandbox.infer(model, model_bytes, where, values=False)
    except LibraryError:
        _forget_shapes(model)
    try:
        converted = onnx_sandbox.convert(model, model_bytes, where, OPSET)
    except LibraryError:
        return model
    if opset_of(model) < RESIZE_WITH_MODES:
        # Upsample and the first Resize are asymmetric and round down; the converter leaves the new defaults
        for node in converted.graph.node:
            if node.op_type == "Resize":
                node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
                node.attribute.append(onnx.helper.make_attribute("nearest_mode", "floor"))
    return converted
