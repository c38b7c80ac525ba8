"""Run a compiled model on the simulated NPU, with the call shape of onnxruntime.

    session = InferenceSession("best.onnx")
    (y,) = session.run(None, {"x": x}, level="severe")

Values come from the instructions in the container, never from the ONNX body.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.container import MAGIC, Container, decode, program
from simulator.npu.errors import BadInputError
from simulator.npu.machine import BLOCK_BYTES
from simulator.npu.program import BufferKind, DdrBuffer
from simulator.onnx_container import find_container, read_container


@dataclass(frozen=True)
class NodeArg:
    """An input or output.  Values are float32 on the host, whatever the NPU computes in."""

    name: str
    shape: list[int]
    type: str = "tensor(float)"


class InferenceSession:
    """A compiled ONNX file (its path or bytes), or a bare container's bytes.

    Raises `BadInputError` for a file that cannot be read, holds no container, or a damaged one (`ContainerError`).
    """

    def __init__(self, path_or_bytes: str | os.PathLike[str] | bytes) -> None:
        if not isinstance(path_or_bytes, bytes):
            data = read_container(path_or_bytes)
        elif path_or_bytes.startswith(MAGIC):
            data = path_or_bytes
        else:
            data = find_container(memoryview(path_or_bytes), "model bytes")
        self.container: Container = decode(data)
        self._inputs = self.container.memory.of_kind("input")
        self._outputs = self.container.memory.of_kind("output")

    @property
    def levels(self) -> tuple[str, ...]:
        """Contention levels that have a variant."""
        return self.container.levels

    def get_inputs(self) -> list[NodeArg]:
        return self._ports("input")

    def get_outputs(self) -> list[NodeArg]:
        return self._ports("output")

    def _ports(self, kind: BufferKind) -> list[NodeArg]:
        return [NodeArg(b.name, list(b.onnx_shape)) for b in self.container.memory.of_kind(kind)]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, ArrayLike], level: str = "none") -> list[NDArray[np.float32]]:
        """One inference with the variant of `level`; outputs in the order asked for (None: all), each of its ONNX shape.

        Raises `BadInputError` for a name, a shape, a type or a level that the model does not have.
        """
        code = program(self.container, level)
        known = {buffer.name: buffer for buffer in self._outputs}
        wanted = list(known) if output_names is None else list(output_names)
        for name in wanted:
            if name not in known:
                raise BadInputError(f"output {name!r}: the model has {', '.join(known)}")
        arrays = self.checked(feeds)
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
        return [read_output(ddr, known[name], self.container.dtype).reshape(known[name].onnx_shape) for name in wanted]

    def checked(self, feeds: Mapping[str, ArrayLike]) -> list[NDArray[Any]]:
        """The feeds in the order of the inputs.  Raises `BadInputError` for a name, a shape or a type that the model does not have."""
        names = [buffer.name for buffer in self._inputs]
        for name in feeds:
            if name not in names:
                raise BadInputError(f"input {name!r}: the model has {', '.join(names)}")
        return [_checked_array(buffer, feeds) for buffer in self._inputs]


def _checked_array(buffer: DdrBuffer, feeds: Mapping[str, ArrayLike]) -> NDArray[Any]:
    if buffer.name not in feeds:
        raise BadInputError(f"input {buffer.name!r}: missing; expected float32 {list(buffer.onnx_shape)}")
    array = np.asarray(feeds[buffer.name])
    # float16 and float64 lose nothing that the NPU's own rounding would keep apart; integers are a mix-up of inputs
    if array.dtype.kind != "f" or array.shape != buffer.onnx_shape:
        raise BadInputError(f"input {buffer.name!r}: found {array.dtype} {list(array.shape)}, expected float32 {list(buffer.onnx_shape)}")
    return array
