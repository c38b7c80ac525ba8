"""Files with command streams: a `.tflite` file with custom operators, as the part's own stack loads it, and raw words with a header.

A custom operator `ethos-u` reads the driver's payload, constants, and two arenas in front of its own inputs.  The first arena is in DRAM,
the second in SRAM.  Offsets of tensors in the first one are in the metadata `OfflineMemoryAllocation`.
Sources: the public driver of the part (`ethosu_driver.c`) and the kernel `ethosu` of TensorFlow Lite Micro (both Apache-2.0).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.network_parts import CompiledNetwork, StreamPart
from compiler.frontend.tflite.file_schema import (
    BUFFER_DATA,
    BY_NAME,
    CUSTOM,
    IDENTIFIER,
    METADATA_BUFFER,
    METADATA_NAME,
    TYPE_NUMBERS,
    Code,
    Model,
    OperatorField,
    QuantizationField,
    SubGraph,
    TensorField,
)
from compiler.frontend.tflite.flatbuffer import Fields, Scalar, write_root
from compiler.frontend.tflite.network import TfliteOperator, TfliteTensor
from simulator.ethosu.driver_payload import MAGIC, PRODUCT_U65
from simulator.ethosu.raw_streams import RawPort, RawStream, write_raw_streams
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
    return _FileWriter(compiled).file()


class _FileWriter:
    """Buffers, tensors and operators as they grow."""

    def __init__(self, compiled: CompiledNetwork) -> None:
        self.compiled, self.network = compiled, compiled.network
        self.buffers: list[Fields] = [{}]
        self.tensors, self.offsets, self.codes = list[Fields](), list[int](), list[Fields]()
        self.numbers = dict[int, int]()
        self.kinds = dict[str, int]()

    def file(self) -> bytes:
        network, compiled = self.network, self.compiled
        ends = [[self.tensor(number) for number in numbers] for numbers in (network.inputs, network.outputs)]
        operators, place = list[Fields](), 0
        starts = {part.first: part for part in compiled.parts}
        while place < len(network.operators):
            if place in starts:
                operators.append(self.custom(starts[place]))
                place = starts[place].last
            else:
                operators.append(self.builtin(place))
                place += 1
        offsets = np.array([0, 1, len(self.offsets), *self.offsets], "<i4")
        graph: Fields = {
            SubGraph.TENSORS: self.tensors, SubGraph.INPUTS: np.array(ends[0], "<i4"), SubGraph.OUTPUTS: np.array(ends[1], "<i4"),
            SubGraph.OPERATORS: operators, SubGraph.NAME: b"main",
        }  # fmt: skip
        metadata: list[Fields] = [
            {METADATA_NAME: b"OfflineMemoryAllocation", METADATA_BUFFER: Scalar("I", self.buffer(offsets.view(np.uint8)))}
        ]
        root: Fields = {
            Model.VERSION: Scalar("I", 3), Model.CODES: self.codes, Model.SUBGRAPHS: [graph], Model.DESCRIPTION: b"tilefarm",
            Model.BUFFERS: self.buffers, Model.METADATA: metadata,
        }  # fmt: skip
        return write_root(root, IDENTIFIER)

    def buffer(self, data: NDArray[np.uint8]) -> int:
        self.buffers.append({BUFFER_DATA: data})
        return len(self.buffers) - 1

    def tensor(self, number: int) -> int:
        """A tensor of the network; its number in the file."""
        if number not in self.numbers:
            self.numbers[number] = self.add(self.network.tensors[number], self.compiled.borders.get(number, _NO_OFFSET))
        return self.numbers[number]

    def add(self, tensor: TfliteTensor, offset: int) -> int:
        buffer = 0 if tensor.data is None else self.buffer(np.frombuffer(tensor.data.tobytes(), np.uint8))
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

    def code(self, kind: str) -> int:
        """The number of a kind of operator."""
        if kind not in self.kinds:
            self.kinds[kind] = len(self.codes)
            number = BY_NAME[kind].number if kind in BY_NAME else CUSTOM
            custom = None if kind in BY_NAME else kind.encode()
            version = Scalar("i", 1 if custom else self.network.versions.get(kind, 1))
            self.codes.append({
                Code.OLD: Scalar("b", min(number, 127)), Code.CUSTOM: custom, Code.VERSION: version, Code.BUILTIN: Scalar("i", number),
            })  # fmt: skip
        return self.kinds[kind]

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
        return {OperatorField.CODE: Scalar("I", self.code(kind)), OperatorField.INPUTS: ends[0], OperatorField.OUTPUTS: ends[1]}


def write_raw(compiled: CompiledNetwork) -> bytes:
    """Raw words of all streams in order."""
    streams = []
    for part in compiled.parts:
        stream = part.stream
        ends = (
            tuple(RawPort(place.offset, part.network.tensors[place.tensor].nbytes) for place in places)
            for places in (stream.inputs, stream.outputs)
        )
        streams.append(RawStream(stream.words, stream.constants, compiled.arena, stream.fast, *ends))
    return write_raw_streams(streams)
