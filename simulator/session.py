"""Run a compiled model on the simulated NPU, with the call shape of onnxruntime.

    session = InferenceSession("best.onnx")
    (y,) = session.run(None, {"x": x}, level="severe")

Values come from the instructions in the container, never from the ONNX body.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.container import MAGIC, Container, decode, program
from simulator.npu.errors import BadInputError
from simulator.npu.machine import BLOCK_BYTES
from simulator.npu.program import DdrBuffer, Program
from simulator.onnx_container import find_container, nodes_of, read_file

if TYPE_CHECKING:
    from simulator.host_nodes import HostNodes, HostPort


@dataclass(frozen=True)
class NodeArg:
    """An input or output of the model.  What the NPU takes and gives is float32 on the host, whatever it computes in."""

    name: str
    shape: list[int]
    type: str = "tensor(float)"


class InferenceSession:
    """A compiled ONNX file (its path or bytes), or a bare container's bytes.

    Nodes around the container, which the NPU does not support, run on onnxruntime before and after it (`simulator.host_nodes`).
    Raises `BadInputError` for a file that cannot be read, holds no container, or a damaged one (`ContainerError`).
    """

    def __init__(self, path_or_bytes: str | os.PathLike[str] | bytes) -> None:
        bare = isinstance(path_or_bytes, bytes) and path_or_bytes.startswith(MAGIC)
        where = "model bytes" if isinstance(path_or_bytes, bytes) else str(path_or_bytes)
        view = memoryview(path_or_bytes) if isinstance(path_or_bytes, bytes) else read_file(path_or_bytes)
        self.container: Container = decode(bytes(view) if bare else find_container(view, where))
        self._inputs = self.container.memory.of_kind("input")
        self._outputs = self.container.memory.of_kind("output")
        self.host = None if bare or nodes_of(view, where) == 1 else _host_nodes(view, where)
        if self.host is not None:
            _check_border(self.host, self._inputs, self._outputs, where)

    @property
    def levels(self) -> tuple[str, ...]:
        """Contention levels that have a variant."""
        return self.container.levels

    def get_inputs(self) -> list[NodeArg]:
        return _ports(self._inputs) if self.host is None else _host_ports(self.host.inputs)

    def get_outputs(self) -> list[NodeArg]:
        return _ports(self._outputs) if self.host is None else _host_ports(self.host.outputs)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, ArrayLike], level: str = "none") -> list[NDArray[Any]]:
        """One inference with the variant of `level`; outputs in the order asked for (None: all), each of its ONNX shape.

        Raises `BadInputError` for a name, a shape, a type or a level that the model does not have.
        """
        code = program(self.container, level)
        known = [port.name for port in self.get_outputs()]
        wanted = known if output_names is None else list(output_names)
        for name in wanted:
            if name not in known:
                raise BadInputError(f"output {name!r}: the model has {', '.join(known)}")
        arrays = self.checked(feeds)
        if self.host is None:
            values = self._execute(code, arrays)
            return [values[name] for name in wanted]
        values = self.host.before(dict(zip((port.name for port in self.get_inputs()), arrays, strict=True)))
        values = self.host.after(values | self._execute(code, [_checked_array(buffer, values) for buffer in self._inputs]))
        return [values[name] for name in wanted]

    def _execute(self, code: Program, arrays: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What the container makes of its inputs, in their order."""
        try:
            # NaNs in either data type: a value that nobody wrote shows
            ddr = np.full(self.container.memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
        except MemoryError:
            raise BadInputError(f"memory map: {self.container.memory.size_blocks} blocks of DDR cannot be allocated here") from None
        constants = np.frombuffer(self.container.constants, np.uint8)
        ddr[: constants.size] = constants
        for buffer, array in zip(self._inputs, arrays, strict=True):
            load_input(ddr, buffer, array, self.container.dtype)
        execute(code, self.container.machine, ddr, verify=False)  # `decode` did
        return {buffer.name: read_output(ddr, buffer, self.container.dtype).reshape(buffer.onnx_shape) for buffer in self._outputs}

    def checked(self, feeds: Mapping[str, ArrayLike]) -> list[NDArray[Any]]:
        """The feeds in the order of the inputs.  Raises `BadInputError` for a name, a shape or a type that the model does not have."""
        names = [port.name for port in self.get_inputs()]
        for name in feeds:
            if name not in names:
                raise BadInputError(f"input {name!r}: the model has {', '.join(names)}")
        if self.host is None:
            return [_checked_array(buffer, feeds) for buffer in self._inputs]
        return [_checked_port(port, feeds) for port in self.host.inputs]


def _ports(buffers: Sequence[DdrBuffer]) -> list[NodeArg]:
    return [NodeArg(b.name, list(b.onnx_shape)) for b in buffers]


def _host_ports(ports: Sequence[HostPort]) -> list[NodeArg]:
    names = {"float32": "float", "float64": "double"}
    return [NodeArg(p.name, list(p.shape or ()), f"tensor({names.get(p.dtype.name, p.dtype.name)})") for p in ports]


def _host_nodes(view: memoryview, where: str) -> HostNodes:
    from simulator.host_nodes import HostNodes  # onnx and onnxruntime: only a file with nodes for the host pays for them

    return HostNodes(bytes(view), where)


def _check_border(host: HostNodes, inputs: Sequence[DdrBuffer], outputs: Sequence[DdrBuffer], where: str) -> None:
    for what, mine, theirs in (("inputs", inputs, host.partition_inputs), ("outputs", outputs, host.partition_outputs)):
        if sorted(buffer.name for buffer in mine) != sorted(theirs):
            raise BadInputError(f"{where}: its container has {what} {[b.name for b in mine]}, its node {theirs}")


def _checked_port(port: HostPort, feeds: Mapping[str, ArrayLike]) -> NDArray[Any]:
    """As `_checked_array`, for an input of any type; floats of any width are taken for float."""
    shape = list(port.shape or ())
    if port.name not in feeds:
        raise BadInputError(f"input {port.name!r}: missing; expected {port.dtype} {shape}")
    array = np.asarray(feeds[port.name])
    if (array.dtype != port.dtype and not (array.dtype.kind == port.dtype.kind == "f")) or list(array.shape) != shape:
        raise BadInputError(f"input {port.name!r}: found {array.dtype} {list(array.shape)}, expected {port.dtype} {shape}")
    return array.astype(port.dtype, copy=False)


def _checked_array(buffer: DdrBuffer, feeds: Mapping[str, ArrayLike]) -> NDArray[Any]:
    if buffer.name not in feeds:
        raise BadInputError(f"input {buffer.name!r}: missing; expected float32 {list(buffer.onnx_shape)}")
    array = np.asarray(feeds[buffer.name])
    # float16 and float64 lose nothing that the NPU's own rounding would keep apart; integers are a mix-up of inputs
    if array.dtype.kind != "f" or array.shape != buffer.onnx_shape:
        raise BadInputError(f"input {buffer.name!r}: found {array.dtype} {list(array.shape)}, expected float32 {list(buffer.onnx_shape)}")
    return array
