"""Fields of `.tflite` files by number, and operators with their options, as data.  Source: TensorFlow's `schema.fbs` (Apache-2.0)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

IDENTIFIER = b"TFL3"


class Model(IntEnum):
    """Fields of the root."""

    VERSION = 0
    CODES = 1
    SUBGRAPHS = 2
    DESCRIPTION = 3
    BUFFERS = 4
    METADATA = 6
    SIGNATURES = 7


class Signature(IntEnum):
    """Fields of a signature, by which a graph is called."""

    INPUTS = 0
    OUTPUTS = 1
    KEY = 2
    GRAPH = 4


class Code(IntEnum):
    """Fields of a kind of operator.  OLD: of files whose numbers end at 127."""

    OLD = 0
    CUSTOM = 1
    VERSION = 2
    BUILTIN = 3


class SubGraph(IntEnum):
    """Fields of a graph."""

    TENSORS = 0
    INPUTS = 1
    OUTPUTS = 2
    OPERATORS = 3
    NAME = 4


class TensorField(IntEnum):
    """Fields of a tensor."""

    SHAPE = 0
    TYPE = 1
    BUFFER = 2
    NAME = 3
    QUANTIZATION = 4


class QuantizationField(IntEnum):
    """Fields of a quantisation."""

    SCALE = 2
    ZERO_POINT = 3
    AXIS = 6


class OperatorField(IntEnum):
    """Fields of an operator."""

    CODE = 0
    INPUTS = 1
    OUTPUTS = 2
    OPTIONS_TYPE = 3
    OPTIONS = 4
    CUSTOM_OPTIONS = 5


BUFFER_DATA, METADATA_NAME, METADATA_BUFFER = 0, 0, 1
PORT_NAME, PORT_TENSOR = 0, 1
"""Fields of an input or output of a signature."""
TYPES: Mapping[int, str] = MappingProxyType({0: "float32", 2: "int32", 3: "uint8", 4: "int64", 7: "int16", 9: "int8"})
TYPE_NUMBERS: Mapping[str, int] = MappingProxyType({name: number for number, name in TYPES.items()})
CUSTOM = 32
SAME = 0


class Option(NamedTuple):
    """A field of a table of options.  code: its letter of `struct`."""

    name: str
    field: int
    code: str
    default: Any = 0


class Kind(NamedTuple):
    """An operator.  table: number of its table of options, 0 without one."""

    name: str
    number: int
    table: int = 0
    options: tuple[Option, ...] = ()


def _activation(field: int) -> Option:
    return Option("activation", field, "b")


_WINDOW = (Option("padding", 0, "b"), Option("stride_x", 1, "i"), Option("stride_y", 2, "i"))
_POOL = (*_WINDOW, Option("columns", 3, "i"), Option("rows", 4, "i"), _activation(5))
_CONV = (*_WINDOW, _activation(3), Option("dilation_x", 4, "i", 1), Option("dilation_y", 5, "i", 1))
_DEPTHWISE = (*_WINDOW, Option("multiplier", 3, "i"), _activation(4), Option("dilation_x", 5, "i", 1), Option("dilation_y", 6, "i", 1))
_CORNERS = ("align_corners", "half_pixel_centers")

KINDS: tuple[Kind, ...] = (
    Kind("ADD", 0, 11, (_activation(0),)),
    Kind("AVERAGE_POOL_2D", 1, 5, _POOL),
    Kind("CONCATENATION", 2, 10, (Option("axis", 0, "i"), _activation(1))),
    Kind("CONV_2D", 3, 1, _CONV),
    Kind("DEPTHWISE_CONV_2D", 4, 2, _DEPTHWISE),
    Kind("FULLY_CONNECTED", 9, 8, (_activation(0), Option("weights_format", 1, "b"), Option("keep_axes", 2, "?", False))),
    Kind("LOGISTIC", 14),
    Kind("MAX_POOL_2D", 17, 5, _POOL),
    Kind("MUL", 18, 21, (_activation(0),)),
    Kind("RELU", 19),
    Kind("RELU_N1_TO_1", 20),
    Kind("RELU6", 21),
    Kind("RESHAPE", 22, 17),
    Kind("RESIZE_BILINEAR", 23, 15, tuple(Option(name, 2 + number, "?", False) for number, name in enumerate(_CORNERS))),
    Kind("SOFTMAX", 25, 9, (Option("beta", 0, "f", 0.0),)),
    Kind("TANH", 28),
    Kind("PAD", 34, 22),
    Kind("MEAN", 40, 27, (Option("keep_axes", 0, "?", False),)),
    Kind("SUB", 41, 28, (_activation(0),)),
    Kind("SQUEEZE", 43, 30),
    Kind("MAXIMUM", 55, 39),
    Kind("MINIMUM", 57, 39),
    Kind("SLICE", 65, 48),
    Kind("TRANSPOSE_CONV", 67, 49, (*_WINDOW, _activation(3))),
    Kind("RESIZE_NEAREST_NEIGHBOR", 97, 74, tuple(Option(name, number, "?", False) for number, name in enumerate(_CORNERS))),
    Kind("LEAKY_RELU", 98, 75, (Option("alpha", 0, "f", 0.0),)),
    Kind("ABS", 101, 78),
    Kind("QUANTIZE", 114, 89),
    Kind("HARD_SWISH", 117, 91),
)
BY_NUMBER: Mapping[int, Kind] = MappingProxyType({kind.number: kind for kind in KINDS})
BY_NAME: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in KINDS})
