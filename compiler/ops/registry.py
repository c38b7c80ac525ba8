"""Registry of the operator kinds that have instructions."""

from __future__ import annotations

from compiler.ir.operators import (
    Conv,
    Dequantise,
    LayerNorm,
    LookUp,
    MatMul,
    Pool,
    Quantise,
    QuantisedAffine,
    QuantisedAverage,
    QuantisedConv,
    QuantisedMatMul,
    QuantisedPair,
    QuantisedSoftmax,
    Reflow,
    Relayout,
    Resample,
    Softmax,
    Vector,
)
from compiler.ops.base import OperatorKind
from compiler.ops.conv import ConvSpec
from compiler.ops.conv_emitter import conv_rows
from compiler.ops.conv_job import ConvJob
from compiler.ops.depthwise_emitter import DepthwiseJob, depthwise_rows
from compiler.ops.elementwise import VectorSpec
from compiler.ops.integer_elementwise import TypedSpec
from compiler.ops.matmul import MatMulSpec
from compiler.ops.norm import LayerNormSpec
from compiler.ops.pool import PoolSpec
from compiler.ops.pool_emitter import PoolJob, fed_rows, pool_rows
from compiler.ops.quantised_avg_pool import AverageSpec
from compiler.ops.quantised_avg_pool_emitter import AverageJob, average_rows
from compiler.ops.quantised_conv import QuantisedConvSpec
from compiler.ops.quantised_matmul import QuantisedMatMulSpec
from compiler.ops.quantised_softmax import QuantisedSoftmaxSpec
from compiler.ops.reflow import ReflowSpec
from compiler.ops.reflow_emitter import ReflowJob, reflow_rows
from compiler.ops.relayout import RelayoutSpec
from compiler.ops.relayout_emitter import RelayoutJob, relayout_rows
from compiler.ops.resample import ResampleSpec
from compiler.ops.resample_emitter import ResampleJob, resample_rows
from compiler.ops.softmax import SoftmaxSpec
from compiler.ops.tile_program_emitter import TileJob, program_rows

KINDS = (
    OperatorKind(Conv, ConvSpec, ConvJob, conv_rows),
    OperatorKind(QuantisedConv, QuantisedConvSpec, ConvJob, conv_rows),
    OperatorKind(MatMul, MatMulSpec, ConvJob, conv_rows),
    OperatorKind(QuantisedMatMul, QuantisedMatMulSpec, ConvJob, conv_rows),
    OperatorKind(Vector, VectorSpec, TileJob, program_rows),
    OperatorKind(Pool, PoolSpec, PoolJob, pool_rows),
    OperatorKind(QuantisedAverage, AverageSpec, AverageJob, average_rows),
    OperatorKind(Softmax, SoftmaxSpec, TileJob, program_rows),
    OperatorKind(QuantisedSoftmax, QuantisedSoftmaxSpec, TileJob, program_rows),
    OperatorKind(LayerNorm, LayerNormSpec, TileJob, program_rows),
    OperatorKind(Reflow, ReflowSpec, ReflowJob, reflow_rows),
    OperatorKind(Relayout, RelayoutSpec, RelayoutJob, relayout_rows),
    OperatorKind(Resample, ResampleSpec, ResampleJob, resample_rows),
    *(OperatorKind(op, TypedSpec, TileJob, program_rows) for op in (Quantise, Dequantise, LookUp, QuantisedAffine, QuantisedPair)),
)
BY_OPERATOR = {kind.operator: kind for kind in KINDS}
JOBS = [*dict.fromkeys(kind.job for kind in KINDS), DepthwiseJob, PoolJob]  # depthwise convolutions on VECTOR have the graph class `Conv`
EMITTERS = [*{kind.job: kind.emitter for kind in KINDS}.values(), depthwise_rows, fed_rows]
"""Emitters in the order of `JOBS`.  The last emitter writes fed pools (`segment.pool_fusion`)."""
