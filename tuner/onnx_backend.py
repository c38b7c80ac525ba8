"""`onnx.backend` over the whole way: an ONNX model is compiled layer by layer and run on the simulated NPU.

    import tuner.onnx_backend as backend
    (y,) = backend.prepare(model).run([x])

What the NPU has to know when a model is compiled (weights, shapes, scales) may be inputs of the model: those are taken from the first
`run` that needs them, and the model is compiled again when they change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from compiler.frontend import lower
from compiler.frontend.load import prepare as checked
from compiler.frontend.skeleton import FLOATS
from compiler.pipeline import Compiler
from compiler.tile.machine import check_machine
from compiler.tile.spec import make_unit
from simulator.npu.container import encode
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import DataType, load_machine
from simulator.session import InferenceSession
from tuner.build import build_variants, default_plan

MACHINE = "edge"
DEVICE = "CPU"  # the simulated NPU is a process of the host, and this is the name that onnx knows
_KEPT = 4  # compilations of one model with different bound inputs


def compile_model(model: ModelProto, machine: str = MACHINE, dtype: DataType = DataType.float32) -> InferenceSession:
    """A model compiled layer by layer.  Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`."""
    loaded = load_machine(machine)
    check_machine(loaded, dtype)
    compiler = Compiler(make_unit(lower(checked(model)), loaded, dtype))
    level = next(iter(loaded.contention))
    return InferenceSession(encode(build_variants(compiler, {level: default_plan(compiler.unit)})))


def as_floats(model: ModelProto) -> ModelProto:
    """A copy whose ports of other kinds of float are float32: it is computed in the NPU's data type anyway."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for item in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        if item.type.tensor_type.elem_type in FLOATS:
            item.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in copy.graph.initializer:
        _as_float(tensor)
    for node in copy.graph.node:
        for attribute in node.attribute:
            _as_float(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in FLOATS:
                attribute.i = TensorProto.FLOAT
    return copy


def _as_float(tensor: TensorProto) -> None:
    if tensor.data_type in FLOATS and tensor.data_type != TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))


def bound(model: ModelProto, values: dict[str, NDArray[Any]]) -> ModelProto:
    """A copy in which some inputs are constants."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for item in [item for item in copy.graph.input if item.name in values]:
        copy.graph.input.remove(item)
    copy.graph.initializer.extend(numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in values.items())
    return copy


def _host_array(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.name not in ("float16", "float64", "bfloat16"):
        return array
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if (np.isinf(narrow) & ~np.isinf(array)).any():
        raise UnsupportedError("a value beyond float32; the NPU computes in float32 or float16")
    return narrow


class NpuRep(BackendRep):  # type: ignore[misc]
    """A model that is ready to run."""

    def __init__(self, model: ModelProto, machine: str, dtype: DataType) -> None:
        self.model, self.machine, self.dtype = as_floats(model), machine, dtype
        constants = {item.name for item in model.graph.initializer}
        self.inputs = [item.name for item in model.graph.input if item.name not in constants]
        self.outputs = [item.name for item in model.graph.output]
        for item in (*model.graph.input, *model.graph.output):
            if not item.type.HasField("tensor_type"):
                raise UnsupportedError(f"{item.name!r}: not a tensor; only tensors are supported")
        self.kinds = [onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type) for item in model.graph.output]
        self._sessions: OrderedDict[bytes, InferenceSession] = OrderedDict()
        self._first_bound = len(self.inputs)  # inputs from here on are constants
        try:
            self._sessions[b""] = compile_model(self.model, machine, dtype)
        except UnsupportedError:
            if len(self.inputs) < 2:
                raise
            self._first_bound = 1

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Arrays in the order of the model's inputs; outputs in the order of its outputs."""
        feeds = dict(zip(self.inputs, map(_host_array, inputs), strict=True))
        values = {name: feeds.pop(name) for name in self.inputs[self._first_bound :]}
        session = self._session(values)
        found = [value.astype(kind) for value, kind in zip(session.run(self.outputs, feeds), self.kinds, strict=True)]
        return namedtupledict("Outputs", self.outputs)(*found)

    @property
    def session(self) -> InferenceSession:
        """What ran last."""
        return self._sessions[next(reversed(self._sessions))]

    def _session(self, values: dict[str, NDArray[Any]]) -> InferenceSession:
        key = b"".join(f"{value.dtype}{value.shape}".encode() + value.tobytes() for value in values.values())
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = compile_model(bound(self.model, values), self.machine, self.dtype)
            while len(self._sessions) > _KEPT:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return session


class NpuBackend(Backend):  # type: ignore[misc]
    """`machine`: a preset or a YAML file; `dtype`: of the NPU's storage."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = DEVICE, machine: str = MACHINE, dtype: str = "float32", **kwargs: Any) -> NpuRep:
        """Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`."""
        return NpuRep(model, machine, DataType[dtype])

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = DEVICE, outputs_info: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Not there: a node alone has no shapes.  Raises `UnsupportedError`."""
        raise UnsupportedError("run_node: give a model with shapes; onnx.helper.make_model makes one from a node")

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == DEVICE


prepare = NpuBackend.prepare
run_model = NpuBackend.run_model
run_node = NpuBackend.run_node
supports_device = NpuBackend.supports_device
