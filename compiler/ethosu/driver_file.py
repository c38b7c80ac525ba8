"""Files with command streams: a `.tflite` file with custom operators, as the part's own stack loads it, and raw words with a header.

A custom operator `ethos-u` reads the driver's payload, constants, and two arenas in front of its own inputs.  The first arena is in DRAM,
the second in SRAM.  Offsets of tensors in the first one are in the metadata `OfflineMemoryAllocation`.
Sources: the public driver of the part (`ethosu_driver.c`) and the kernel `ethosu` of TensorFlow Lite Micro (both Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.level_streams import LevelStreams
from compiler.ethosu.network_parts import CompiledNetwork, StreamPart
from compiler.frontend.tflite.file_schema import (
    BUFFER_DATA,
    BY_NAME,
    CUSTOM,
    IDENTIFIER,
    METADATA_BUFFER,
    METADATA_NAME,
    PORT_NAME,
    PORT_TENSOR,
    TYPE_NUMBERS,
    Code,
    Model,
    OperatorField,
    QuantizationField,
    Signature,
    SubGraph,
    TensorField,
)
from compiler.frontend.tflite.flatbuffer import Fields, Scalar, write_root
from compiler.frontend.tflite.network import TfliteOperator, TfliteTensor
from simulator.ethosu.driver_payload import MAGIC, PRODUCT_U65
from simulator.ethosu.raw_streams import RawFile, RawLevel, RawPort, RawStream, write_raw_file
from simulator.npu.errors import UnsupportedError

MACS_LOG2, SHARED_KIB = 8, 48
"""Of the part with 256 multiply-accumulates per cycle."""
_CONFIG, _STREAM, _NOP, _ALIGN_WORDS = 1, 2, 5, 4
_FORMAT, _ARCHITECTURE = 1 << 4, 0x1006_0000
"""Of the configuration: version of the driver's actions, and the architecture 1.0.6 that the stream is for."""
_CUSTOM_OPTIONS = bytes((1, 4, 1))
"""The number 1 as a flexbuffer."""
_NO_OFFSET = -1


def driver_payload(words: tuple[int, ...]) -> bytes:
    """Driver actions around the words of a stream, which begin at a multiple of 16 bytes."""
    config = PRODUCT_U65 << 28 | SHARED_KIB << 8 | MACS_LOG2
    front = [MAGIC, _FORMAT << 16 | _CONFIG, config, _ARCHITECTURE]
    front += [_NOP] * (-(len(front) + 1) % _ALIGN_WORDS)
    length = _STREAM | (len(words) >> 16 & 0xFF) << 8 | (len(words) & 0xFFFF) << 16
    return np.array([*front, length, *words], "<u4").tobytes()


def write_tflite(compiled: CompiledNetwork) -> bytes:
    """The file.  Raises `UnsupportedError` for an operator that is left and whose options are not known."""
    return _FileWriter().file([compiled], {})


def write_level_tflite(streams: LevelStreams) -> bytes:
    """The file of several levels: a graph for each variant, which share constants, and a signature for each level, of its name."""
    return _FileWriter().file(streams.variants, streams.levels)


class _FileWriter:
    """Buffers and kinds of operators as they grow; graphs share them."""

    def __init__(self) -> None:
        self.buffers: list[Fields] = [{}]
        self.codes = list[Fields]()
        self._kinds, self._known = dict[str, int](), dict[bytes, int]()

    def file(self, variants: Sequence[CompiledNetwork], levels: Mapping[str, int]) -> bytes:
        """A graph for each variant.  levels: graph of each signature."""
        writers = [_GraphWriter(self, compiled) for compiled in variants]
        graphs = [writer.graph() for writer in writers]
        offsets = np.array([0, 1, len(writers[0].offsets), *writers[0].offsets], "<i4")
        assert all(writer.offsets == writers[0].offsets for writer in writers), "tensors of all graphs lie where those of the first do"
        metadata: list[Fields] = [
            {METADATA_NAME: b"OfflineMemoryAllocation", METADATA_BUFFER: Scalar("I", self.buffer(offsets.view(np.uint8)))}
        ]
        root: Fields = {
            Model.VERSION: Scalar("I", 3), Model.CODES: self.codes, Model.SUBGRAPHS: graphs, Model.DESCRIPTION: b"tilefarm",
            Model.BUFFERS: self.buffers, Model.METADATA: metadata,
            Model.SIGNATURES: [writers[graph].signature(level, graph) for level, graph in levels.items()] or None,
        }  # fmt: skip
        return write_root(root, IDENTIFIER)

    def buffer(self, data: NDArray[np.uint8]) -> int:
        """The number of a buffer; equal ones are one."""
        content = data.tobytes()
        if content not in self._known:
            self._known[content] = len(self.buffers)
            self.buffers.append({BUFFER_DATA: data})
        return self._known[content]

    def code(self, kind: str, version: int) -> int:
        """The number of a kind of operator."""
        if kind not in self._kinds:
            self._kinds[kind] = len(self.codes)
            number = BY_NAME[kind].number if kind in BY_NAME else CUSTOM
            custom = None if kind in BY_NAME else kind.encode()
            self.codes.append({
                Code.OLD: Scalar("b", min(number, 127)), Code.CUSTOM: custom, Code.VERSION: Scalar("i", 1 if custom else version),
                Code.BUILTIN: Scalar("i", number),
            })  # fmt: skip
        return self._kinds[kind]


class _GraphWriter:
    """Tensors and operators of a graph as they grow.  Tensors in the arena come first, so their numbers are those of every variant."""

    def __init__(self, file: _FileWriter, compiled: CompiledNetwork) -> None:
        self.file, self.compiled, self.network = file, compiled, compiled.network
        self.tensors, self.offsets, self.numbers = list[Fields](), list[int](), dict[int, int]()
        for number in sorted({*self.network.inputs, *self.network.outputs, *compiled.borders}):
            self.tensor(number)

    def graph(self) -> Fields:
        """The graph."""
        operators, place = list[Fields](), 0
        starts = {part.first: part for part in self.compiled.parts}
        while place < len(self.network.operators):
            if place in starts:
                operators.append(self.custom(starts[place]))
                place = starts[place].last
            else:
                operators.append(self.builtin(place))
                place += 1
        ends = ([self.tensor(number) for number in numbers] for numbers in (self.network.inputs, self.network.outputs))
        inputs, outputs = (np.array(numbers, "<i4") for numbers in ends)
        return {
            SubGraph.TENSORS: self.tensors, SubGraph.INPUTS: inputs, SubGraph.OUTPUTS: outputs, SubGraph.OPERATORS: operators,
            SubGraph.NAME: b"main",
        }  # fmt: skip

    def signature(self, level: str, graph: int) -> Fields:
        """The signature of a level; inputs and outputs have the names of their tensors, as far as those are names of one alone."""
        ports = []
        for numbers in (self.network.inputs, self.network.outputs):
            names = [self.network.tensors[number].name for number in numbers]
            unique = len(set(names)) == len(names) and all(names)
            ports.append([
                {PORT_NAME: (name if unique else f"{place}").encode(), PORT_TENSOR: Scalar("I", self.tensor(number))}
                for place, (name, number) in enumerate(zip(names, numbers, strict=True))
            ])  # fmt: skip
        return {
            Signature.INPUTS: ports[0], Signature.OUTPUTS: ports[1], Signature.KEY: level.encode(), Signature.GRAPH: Scalar("I", graph),
        }  # fmt: skip

    def tensor(self, number: int) -> int:
        """A tensor of the network; its number in the file."""
        if number not in self.numbers:
            self.numbers[number] = self.add(self.network.tensors[number], self.compiled.borders.get(number, _NO_OFFSET))
        return self.numbers[number]

    def add(self, tensor: TfliteTensor, offset: int) -> int:
        buffer = 0 if tensor.data is None else self.file.buffer(np.frombuffer(tensor.data.tobytes(), np.uint8))
        quantised: Any = None
        if len(tensor.scales):
            quantised = {
                QuantizationField.SCALE: tensor.scales.astype("<f4"), QuantizationField.ZERO_POINT: tensor.zeros.astype("<i8"),
                QuantizationField.AXIS: Scalar("i", tensor.axis),
            }  # fmt: skip
        self.tensors.append({
            TensorField.SHAPE: np.array(tensor.shape, "<i4"), TensorField.TYPE: Scalar("b", TYPE_NUMBERS[tensor.dtype.name]),
            TensorField.BUFFER: Scalar("I", buffer), TensorField.NAME: tensor.name.encode(), TensorField.QUANTIZATION: quantised,
        })  # fmt: skip
        self.offsets.append(offset)
        return len(self.tensors) - 1

    def octets(self, name: str, size: int, data: NDArray[np.uint8] | None, offset: int = _NO_OFFSET) -> int:
        """A tensor of bytes."""
        none = np.zeros(0, np.float32), np.zeros(0, np.int64)
        return self.add(TfliteTensor(name, (size,), np.dtype(np.uint8), *none, 0, data), offset)

    def custom(self, part: StreamPart) -> Fields:
        """The operator of a stream."""
        payload, constants = np.frombuffer(driver_payload(part.stream.words), np.uint8), part.stream.constants
        inputs = [
            self.octets(f"command_stream{part.first}", len(payload), payload),
            self.octets(f"constants{part.first}", len(constants), constants),
            self.octets(f"arena{part.first}", self.compiled.arena, None, 0), self.octets(f"sram{part.first}", part.stream.fast, None, 0),
            *(self.tensor(place.tensor) for place in part.stream.inputs),
        ]  # fmt: skip
        outputs = [self.tensor(place.tensor) for place in part.stream.outputs]
        return self._operator("ethos-u", inputs, outputs) | {OperatorField.CUSTOM_OPTIONS: np.frombuffer(_CUSTOM_OPTIONS, np.uint8)}

    def builtin(self, number: int) -> Fields:
        """An operator of the processor."""
        operator: TfliteOperator = self.network.operators[number]
        if operator.kind not in BY_NAME:
            raise UnsupportedError(f"{self.network.label(number)}: expected one of {', '.join(sorted(BY_NAME))}")
        kind = BY_NAME[operator.kind]
        inputs, outputs = (
            [-1 if tensor < 0 else self.tensor(tensor) for tensor in numbers] for numbers in (operator.inputs, operator.outputs)
        )
        options = {option.field: Scalar(option.code, operator.options[option.name]) for option in kind.options}
        fields: dict[int, Any] = {OperatorField.OPTIONS_TYPE: Scalar("B", kind.table), OperatorField.OPTIONS: options} if kind.table else {}
        return {**self._operator(operator.kind, inputs, outputs), **fields}

    def _operator(self, kind: str, inputs: list[int], outputs: list[int]) -> dict[int, Any]:
        ends = np.array(inputs, "<i4"), np.array(outputs, "<i4")
        return {
            OperatorField.CODE: Scalar("I", self.file.code(kind, self.network.versions.get(kind, 1))),
            OperatorField.INPUTS: ends[0],
            OperatorField.OUTPUTS: ends[1],
        }


def write_raw(streams: LevelStreams) -> bytes:
    """Raw words of all levels."""
    variants = tuple(tuple(_raw_stream(compiled, part) for part in compiled.parts) for compiled in streams.variants)
    levels = tuple(RawLevel(level, variant, streams.cycles[level]) for level, variant in streams.levels.items())
    return write_raw_file(RawFile(levels, tuple(part.stream.constants for part in streams.variants[0].parts), variants))


def _raw_stream(compiled: CompiledNetwork, part: StreamPart) -> RawStream:
    ends = (
        tuple(RawPort(place.offset, part.network.tensors[place.tensor].nbytes) for place in places)
        for places in (part.stream.inputs, part.stream.outputs)
    )
    return RawStream(part.stream.words, compiled.arena, part.stream.fast, *ends)
