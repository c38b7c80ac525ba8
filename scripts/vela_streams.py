"""Command streams that Vela makes of a .tflite file: its compilers, and the custom operator in the file that they write.

Inputs of the operator `ethos-u` are the driver's payload, constants, and two arenas; those of the model follow.  The offset of a tensor
in the first arena is in the metadata `OfflineMemoryAllocation`.  Regions are 0 for constants, 1 for the first arena (feature maps, in
DRAM), and 2 for the second one, which is in SRAM.  Needs the extras `ethos-u` and `litert`.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from simulator.ethosu.driver_payload import read_payload
from simulator.ethosu.executor import Execution, execute
from simulator.ethosu.memory_regions import Region

COMPILERS = {"regor": (), "python": ("--debug-force-legacy-core",)}
"""Vela's compilers, with the options that choose them."""
SYSTEM = ("--config", "Arm/vela.ini", "--system-config", "Ethos_U65_High_End", "--memory-mode", "Dedicated_Sram_384KB")
CONSTANTS, ARENA, FAST = 0, 1, 2
_TYPES = {
    schema.TensorType.INT8: np.int8,
    schema.TensorType.UINT8: np.uint8,
    schema.TensorType.INT16: np.int16,
    schema.TensorType.INT32: np.int32,
}


class Place(NamedTuple):
    """An input or output in the arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: type[np.generic]


class Stream(NamedTuple):
    """A compiled model.  arena, fast: bytes."""

    words: tuple[int, ...]
    constants: NDArray[np.uint8]
    arena: int
    fast: int
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]

    def run(self, values: list[NDArray[np.generic]]) -> tuple[list[NDArray[np.generic]], Execution]:
        """Outputs for inputs, on arenas of which every byte is set before."""
        arena, fast = np.full(self.arena, 0x55, np.uint8), np.full(self.fast, 0xAA, np.uint8)
        for place, value in zip(self.inputs, values, strict=True):
            octets = np.frombuffer(np.ascontiguousarray(value, place.dtype).tobytes(), np.uint8)
            arena[place.offset : place.offset + len(octets)] = octets
        regions = {CONSTANTS: Region(self.constants, "dram", 1, False), ARENA: Region(arena, "dram", 1), FAST: Region(fast, "sram", 0)}
        execution = execute(self.words, regions, CONSTANTS)
        outputs = []
        for place in self.outputs:
            size = int(np.prod(place.shape)) * np.dtype(place.dtype).itemsize
            outputs.append(arena[place.offset : place.offset + size].view(place.dtype).reshape(place.shape))
        return outputs, execution


class NotWholeError(Exception):
    """A model that Vela leaves to the processor in part."""


def compile_model(model: bytes, compiler: str, folder: Path, accelerator: str = "ethos-u65-256") -> Stream:
    """The stream of a model by one of Vela's compilers, which run in this process."""
    with contextlib.redirect_stdout(io.StringIO()):  # which it keeps to print to
        from ethosu.vela import vela
    from ethosu.vela.errors import VelaError

    source = folder / "model.tflite"
    source.write_bytes(model)
    options = [str(source), "--accelerator-config", accelerator, "--output-dir", str(folder), *SYSTEM, *COMPILERS[compiler]]
    try:
        with _silent():
            failed = vela.main(options)
    except (VelaError, AssertionError, RuntimeError, SystemExit) as error:
        raise NotWholeError(f"vela: {error}".splitlines()[0]) from None
    if failed:
        raise NotWholeError(f"vela: exit code {failed}")
    return read_stream((folder / "model_vela.tflite").read_bytes())


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Nothing is printed, not by a library of C++ either."""
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        with contextlib.redirect_stdout(io.StringIO()):  # which need not be that of the process
            yield
    finally:
        sys.stdout.flush()
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)
        os.close(sink)


def read_stream(data: bytes) -> Stream:
    """The stream of a file that Vela wrote; `NotWholeError` where an operator beside it is left."""
    model = schema.ModelT.InitFromPackedBuf(data)
    (graph,) = model.subgraphs
    names = [model.operatorCodes[operator.opcodeIndex].customCode for operator in graph.operators]
    if names != [b"ethos-u"]:
        raise NotWholeError(f"{len(names)} operators, of which {names.count(b'ethos-u')} are of the NPU")
    (operator,) = graph.operators
    tensors = [graph.tensors[index] for index in operator.inputs[:4]]
    payload, constants = (_data(model, tensor.buffer) for tensor in tensors[:2])
    offsets = _offsets(model)

    def place(index: int) -> Place:
        tensor = graph.tensors[index]
        return Place(int(offsets[index]), tuple(map(int, tensor.shape)), _TYPES[tensor.type])

    sizes = [int(np.prod(tensor.shape)) for tensor in tensors[2:]]
    words = read_payload(payload.tobytes()).words
    return Stream(words, constants, sizes[0], sizes[1], tuple(map(place, graph.inputs)), tuple(map(place, graph.outputs)))


def _offsets(model: schema.ModelT) -> NDArray[np.int32]:
    for entry in model.metadata:
        if entry.name == b"OfflineMemoryAllocation":
            return np.frombuffer(_data(model, entry.buffer).tobytes(), "<i4")[3:]
    raise NotWholeError("no OfflineMemoryAllocation")


def _data(model: schema.ModelT, buffer: int) -> NDArray[np.uint8]:
    data = model.buffers[buffer].data
    return np.zeros(0, np.uint8) if data is None else np.asarray(data, np.uint8)
