"""A network of integers as a `.tflite` file has it: tensors with scale and zero point, and operators by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.tflite.file_schema import (
    BUFFER_DATA,
    BY_NUMBER,
    CUSTOM,
    IDENTIFIER,
    TYPES,
    Code,
    Model,
    OperatorField,
    QuantizationField,
    SubGraph,
    TensorField,
)
from compiler.frontend.tflite.flatbuffer import FlatTable, read_root
from simulator.npu.errors import BadInputError, UnsupportedError

LARGEST_TENSOR = 1 << 28
"""Bytes of a tensor."""


class TfliteTensor(NamedTuple):
    """A tensor.  scales: float32 [1] or [channels] along `axis`, [0] without any.  zeros: int64, as many.  data: of a constant."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scales: NDArray[np.float32]
    zeros: NDArray[np.int64]
    axis: int
    data: NDArray[Any] | None

    @property
    def scale(self) -> np.float32:
        """The one scale of a tensor."""
        if len(self.scales) != 1:
            raise UnsupportedError(f"tensor {self.name!r}: {len(self.scales)} scales: expected 1")
        return np.float32(self.scales[0])

    @property
    def zero(self) -> int:
        """The one zero point of a tensor."""
        return int(self.zeros[0]) if len(self.zeros) else 0

    @property
    def image(self) -> tuple[int, int, int]:
        """Rows, columns and channels, of a tensor of one image."""
        shape = self.shape
        if len(shape) == 4 and shape[0] == 1:
            return shape[1], shape[2], shape[3]
        if len(shape) == 2 and shape[0] == 1:
            return 1, 1, shape[1]
        if len(shape) == 3:
            return shape
        raise UnsupportedError(f"tensor {self.name!r}: shape {list(shape)}: expected [1, rows, columns, channels] or [1, channels]")

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class TfliteOperator:
    """An operator.  inputs: numbers of tensors, -1 for none.  options: by name."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class TfliteNetwork:
    """Operators in order, and tensors by number.  inputs, outputs: numbers of tensors of the model.  versions: of kinds of operators."""

    tensors: tuple[TfliteTensor, ...]
    operators: tuple[TfliteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    versions: Mapping[str, int] = field(default_factory=dict)

    def label(self, number: int) -> str:
        """An operator in messages."""
        return f"operator {number}, {self.operators[number].kind}"


def read_network(data: bytes) -> TfliteNetwork:
    """The network of a `.tflite` file.  Raises `BadInputError` for a damaged file, `UnsupportedError` for one with several graphs."""
    root = read_root(data, IDENTIFIER)
    graphs, buffers = root.tables(Model.SUBGRAPHS), root.tables(Model.BUFFERS)
    kinds = [_kind(code) for code in root.tables(Model.CODES)]  # in front of the graphs, of which a compiled file has one for each level
    if len(graphs) != 1:
        raise UnsupportedError(f"{len(graphs)} graphs: expected 1")
    tensors = tuple(_tensor(table, buffers) for table in graphs[0].tables(SubGraph.TENSORS))
    operators = tuple(_operator(table, kinds) for table in graphs[0].tables(SubGraph.OPERATORS))
    ends = [tuple(graphs[0].array(field, "<i4").tolist()) for field in (SubGraph.INPUTS, SubGraph.OUTPUTS)]
    numbers = [*ends[0], *ends[1], *(number for operator in operators for number in (*operator.inputs, *operator.outputs) if number != -1)]
    if wrong := [number for number in numbers if not 0 <= number < len(tensors)]:
        raise BadInputError(f"tensor {wrong[0]}: expected 0 to {len(tensors) - 1}")
    versions = {name: code.number(Code.VERSION, "i", 1) for (name, _), code in zip(kinds, root.tables(Model.CODES), strict=True)}
    return TfliteNetwork(tensors, operators, ends[0], ends[1], versions)


def _kind(code: FlatTable) -> tuple[str, int]:
    """The name of a kind of operator, and its number."""
    number = max(code.number(Code.OLD, "b"), code.number(Code.BUILTIN, "i"))
    if number == CUSTOM:
        raise UnsupportedError(f"a custom operator {code.text(Code.CUSTOM)!r}: expected a file that no compiler has written yet")
    return (BY_NUMBER[number].name if number in BY_NUMBER else f"BUILTIN_{number}"), number


def _tensor(table: FlatTable, buffers: list[FlatTable]) -> TfliteTensor:
    shape = tuple(table.array(TensorField.SHAPE, "<i4").tolist())
    number, buffer, name = table.number(TensorField.TYPE, "b"), table.number(TensorField.BUFFER, "I"), table.text(TensorField.NAME)
    if number not in TYPES:
        raise UnsupportedError(f"tensor {name!r}: type {number}: expected {', '.join(TYPES.values())}")
    dtype = np.dtype(TYPES[number]).newbyteorder("<")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize > LARGEST_TENSOR:
        raise BadInputError(f"tensor {name!r}: shape {list(shape)}: expected sizes of at least 0, and at most {LARGEST_TENSOR} bytes")
    if buffer >= len(buffers):
        raise BadInputError(f"tensor {name!r}: buffer {buffer}: expected 0 to {len(buffers) - 1}")
    raw, data = buffers[buffer].array(BUFFER_DATA, "u1"), None
    if buffer and len(raw):
        if len(raw) != math.prod(shape) * dtype.itemsize:
            raise BadInputError(f"tensor {name!r}: {len(raw)} bytes of values: expected {math.prod(shape) * dtype.itemsize}")
        data = np.frombuffer(raw.tobytes(), dtype).reshape(shape)
    quantised = table.table(TensorField.QUANTIZATION)
    scales, zeros, axis = np.zeros(0, np.float32), np.zeros(0, np.int64), 0
    if quantised:
        scales, zeros = quantised.array(QuantizationField.SCALE, "<f4"), quantised.array(QuantizationField.ZERO_POINT, "<i8")
        axis = quantised.number(QuantizationField.AXIS, "i")
        zeros = zeros if len(zeros) == len(scales) else np.zeros(len(scales), np.int64)
    return TfliteTensor(name, shape, dtype, scales, zeros, axis, data)


def _operator(table: FlatTable, kinds: list[tuple[str, int]]) -> TfliteOperator:
    code = table.number(OperatorField.CODE, "I")
    if code >= len(kinds):
        raise BadInputError(f"operator of kind {code}: expected 0 to {len(kinds) - 1}")
    name, number = kinds[code]
    inputs, outputs = (tuple(table.array(field, "<i4").tolist()) for field in (OperatorField.INPUTS, OperatorField.OUTPUTS))
    options, values = table.table(OperatorField.OPTIONS), dict[str, Any]()
    for option in BY_NUMBER[number].options if number in BY_NUMBER else ():
        values[option.name] = options.number(option.field, option.code, option.default) if options else option.default
    return TfliteOperator(name, inputs, outputs, values)
