"""Operators of a graph, one file each: output shape, reference computation, needed input regions, lane constraints."""

from compiler.ir.operators.base import COLUMNS, ROWS, ZERO, Floats, Operator, Shape, Values
from compiler.ir.operators.conv import Conv, Convolution, WeightShape
from compiler.ir.operators.matmul import HeadedProduct, MatMul
from compiler.ir.operators.norm import LayerNorm
from compiler.ir.operators.places import Concat, Shuffle
from compiler.ir.operators.pool import Pool
from compiler.ir.operators.quantised_products import QuantisedConv, QuantisedMatMul
from compiler.ir.operators.quantised_values import (
    Dequantise,
    LookUp,
    Quantise,
    QuantisedAffine,
    QuantisedAverage,
    QuantisedPair,
    QuantisedSoftmax,
)
from compiler.ir.operators.reflow import Reflow
from compiler.ir.operators.relayout import Relayout
from compiler.ir.operators.resample import Resample
from compiler.ir.operators.softmax import Softmax
from compiler.ir.operators.vector import GUARDS, Step, StepOp, Vector
from compiler.ir.operators.windows import window_size

__all__ = [
    "COLUMNS",
    "GUARDS",
    "ROWS",
    "ZERO",
    "Concat",
    "Conv",
    "Convolution",
    "Dequantise",
    "Floats",
    "HeadedProduct",
    "LayerNorm",
    "LookUp",
    "MatMul",
    "Operator",
    "Pool",
    "Quantise",
    "QuantisedAffine",
    "QuantisedAverage",
    "QuantisedConv",
    "QuantisedMatMul",
    "QuantisedPair",
    "QuantisedSoftmax",
    "Reflow",
    "Relayout",
    "Resample",
    "Shape",
    "Shuffle",
    "Softmax",
    "Step",
    "StepOp",
    "Values",
    "Vector",
    "WeightShape",
    "window_size",
]  # fmt: skip
