"""`onnx.backend` interface: an ONNX model is compiled layer by layer and run on the simulated NPU.

    import tuner.onnx_backend as backend
    (y,) = backend.prepare(model).run([x])

Values that must be known for compilation (weights, shapes, scales) may be inputs of the model.  They are taken from the first `run` that
needs them, and the model is compiled again when they change.  Nodes that are still unsupported run on onnxruntime, around as many subgraphs
as needed; a model without any node for the NPU is refused.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from compiler.build import build_variants, default_plan
from compiler.frontend import load_model, lower
from compiler.frontend.lower import lower_partition
from compiler.frontend.partition.offload_cost import AlwaysOffload
from compiler.ir.graph import Graph
from compiler.ops.lower_graph import pack_unit
from compiler.package import onnx_bytes
from compiler.target.capabilities import check_machine
from simulator.npu.container_file import encode
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.onnx_kinds import FLOATS, widen_model
from simulator.session import InferenceSession

MACHINE = "edge"
DEVICE = "CPU"  # onnx knows only such names; the simulated NPU is a process of the host
_OTHERS = tuple(kind for kind in FLOATS if kind != TensorProto.FLOAT)
_KEPT = 4  # compilations of one model with different bound inputs


def compile_model(model: ModelProto, machine: str = MACHINE, dtype: DataType = DataType.float32, whole: bool = True) -> InferenceSession:
    """Compile a model layer by layer.  whole: require all of it on the NPU; else as much as is supported, at any cost.

    Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`.
    """
    loaded, prepared = load_machine(machine), load_model(model)
    check_machine(loaded, dtype)
    level = next(iter(loaded.contention))

    def container(graph: Graph) -> bytes:
        packed_unit = pack_unit(graph, loaded, dtype)
        # a single variant needs no controller, and parts of a model need no common rule
        return encode(replace(build_variants(packed_unit, {level: default_plan(packed_unit.target_graph)}), controller=None))

    if whole:
        return InferenceSession(container(lower(prepared)))
    graphs, part = lower_partition(prepared, AlwaysOffload(loaded, dtype))
    return InferenceSession(onnx_bytes(part, [container(graph) for graph in graphs]))


def float_ports(model: ModelProto) -> ModelProto:
    """Copy in which tensors of other float types are float32: the NPU computes in its own data type anyway."""
    copy = deepcopy(model)
    widen_model(copy, _OTHERS)
    return copy


def bound(model: ModelProto, values: dict[str, NDArray[Any]]) -> ModelProto:
    """Copy of a model in which some inputs are constants."""
    copy = deepcopy(model)
    copy.ir_version = max(copy.ir_version, 4)  # the first version in which initialisers need not be inputs
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
        self.model, self.machine, self.dtype = float_ports(model), machine, dtype
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
                self._sessions[b""] = compile_model(self.model, machine, dtype, whole=False)
            self._first_bound = 1 if len(self.inputs) > 1 else len(self.inputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Arrays in the order of the model's inputs; outputs in the order of its outputs."""
        values = dict(zip(self.inputs, map(_host_array, inputs), strict=True))
        session = self._session({name: values[name] for name in self.inputs[self._first_bound :]})
        feeds = {port.name: values[port.name] for port in session.get_inputs()}
        outputs = [value.astype(kind) for value, kind in zip(session.run(self.outputs, feeds), self.kinds, strict=True)]
        return namedtupledict("Outputs", self.outputs)(*outputs)

    @property
    def session(self) -> InferenceSession:
        """Session that ran last."""
        return self._sessions[next(reversed(self._sessions))]

    def _session(self, values: dict[str, NDArray[Any]]) -> InferenceSession:
        key = b"".join(f"{value.dtype}{value.shape}".encode() + value.tobytes() for value in values.values())
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self._compile_with_constants(values)
            while len(self._sessions) > _KEPT:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return session

    def _compile_with_constants(self, values: dict[str, NDArray[Any]]) -> InferenceSession:
        """Model compiled with these inputs as constants, or only with those that are single values, such as scales.

        If the whole model is not supported, a part of it, preferably without such constants.
        """
        single = {name: value for name, value in values.items() if value.size == 1}
        if 0 < len(single) < len(values):
            with contextlib.suppress(UnsupportedError):
                return compile_model(bound(self.model, single), self.machine, self.dtype)
        try:
            return compile_model(bound(self.model, values), self.machine, self.dtype)
        except UnsupportedError as refusal:
            for model in (self.model, bound(self.model, values)):
                with contextlib.suppress(UnsupportedError):
                    return compile_model(model, self.machine, self.dtype, whole=False)
            raise refusal


class NpuBackend(Backend):  # type: ignore[misc]
    """`machine`: preset or YAML file.  `dtype`: data type of the NPU."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = DEVICE, machine: str = MACHINE, dtype: str = "float32", **kwargs: Any) -> NpuRep:
        """Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`."""
        return NpuRep(model, machine, DataType[dtype])

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = DEVICE, outputs_info: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Not supported: a single node has no shapes.  Raises `UnsupportedError`."""
        raise UnsupportedError("run_node: give a model with shapes; onnx.helper.make_model makes one from a node")

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == DEVICE


prepare = NpuBackend.prepare
run_model = NpuBackend.run_model
run_node = NpuBackend.run_node
supports_device = NpuBackend.supports_device
