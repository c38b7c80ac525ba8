"""Operators of a graph, a file for each: shape, meaning, which part of its input it needs, where values have to lie."""

from compiler.ir.operators.base import COLUMNS, ROWS, Floats, Operator, Shape, Type, Values
from compiler.ir.operators.conv import Conv, Convolution, Shaped
from compiler.ir.operators.depth_to_space import DepthToSpace
from compiler.ir.operators.matmul import MatMul
from compiler.ir.operators.norm import LayerNorm
from compiler.ir.operators.places import Concat, Shuffle
from compiler.ir.operators.pool import Pool
from compiler.ir.operators.quantised import Dequantise, Lookup, Pointwise, Quantise, QuantisedProduct, QuantisedSum, Requantise
from compiler.ir.operators.quantised_conv import QuantisedConv
from compiler.ir.operators.reflow import Reflow
from compiler.ir.operators.resample import Resample
from compiler.ir.operators.softmax import Softmax
from compiler.ir.operators.vector import GUARD, Step, StepOp, Vector
from compiler.ir.operators.windows import window_size

__all__ = [
    "COLUMNS",
    "GUARD",
    "ROWS",
    "Concat",
    "Conv",
    "Convolution",
    "DepthToSpace",
    "Dequantise",
    "Floats",
    "LayerNorm",
    "Lookup",
    "MatMul",
    "Operator",
    "Pointwise",
    "Pool",
    "Quantise",
    "QuantisedConv",
    "QuantisedProduct",
    "QuantisedSum",
    "Reflow",
    "Requantise",
    "Resample",
    "Shape",
    "Shaped",
    "Shuffle",
    "Softmax",
    "Step",
    "StepOp",
    "Type",
    "Values",
    "Vector",
    "window_size",
]  # fmt: skip
