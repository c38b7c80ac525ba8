"""Every kind of operator that becomes instructions: the one list of them."""

from __future__ import annotations

from compiler.ir.operators import (
    Conv,
    DepthToSpace,
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
    Resample,
    Softmax,
    Vector,
)
from compiler.kinds.average import AverageSpec
from compiler.kinds.average_emitter import AverageJob, average_rows
from compiler.kinds.base import OperatorKind
from compiler.kinds.chain import VectorSpec
from compiler.kinds.chain_emitter import VectorJob, chain_rows
from compiler.kinds.conv import ConvSpec
from compiler.kinds.conv_emitter import ConvJob, conv_rows
from compiler.kinds.depth_to_space import DepthToSpaceSpec
from compiler.kinds.depth_to_space_emitter import DepthToSpaceJob, depth_to_space_rows
from compiler.kinds.depthwise_emitter import DepthwiseJob, depthwise_rows
from compiler.kinds.matmul import MatMulSpec
from compiler.kinds.norm import LayerNormSpec
from compiler.kinds.norm_emitter import LayerNormJob, norm_rows
from compiler.kinds.pool import PoolSpec
from compiler.kinds.pool_emitter import PoolJob, fed_rows, pool_rows
from compiler.kinds.quantised_conv import QuantisedConvSpec
from compiler.kinds.quantised_matmul import QuantisedMatMulSpec
from compiler.kinds.quantised_softmax import QuantisedSoftmaxSpec
from compiler.kinds.quantised_softmax_emitter import QuantisedSoftmaxJob, quantised_softmax_rows
from compiler.kinds.reflow import ReflowSpec
from compiler.kinds.reflow_emitter import ReflowJob, reflow_rows
from compiler.kinds.resample import ResampleSpec
from compiler.kinds.resample_emitter import ResampleJob, resample_rows
from compiler.kinds.softmax import SoftmaxSpec
from compiler.kinds.softmax_emitter import SoftmaxJob, softmax_rows
from compiler.kinds.typed import TypedSpec
from compiler.kinds.typed_emitter import TypedJob, typed_rows

KINDS = (
    OperatorKind(Conv, ConvSpec, ConvJob, conv_rows),
    OperatorKind(QuantisedConv, QuantisedConvSpec, ConvJob, conv_rows),
    OperatorKind(MatMul, MatMulSpec, ConvJob, conv_rows),
    OperatorKind(QuantisedMatMul, QuantisedMatMulSpec, ConvJob, conv_rows),
    OperatorKind(Vector, VectorSpec, VectorJob, chain_rows),
    OperatorKind(Pool, PoolSpec, PoolJob, pool_rows),
    OperatorKind(QuantisedAverage, AverageSpec, AverageJob, average_rows),
    OperatorKind(Softmax, SoftmaxSpec, SoftmaxJob, softmax_rows),
    OperatorKind(QuantisedSoftmax, QuantisedSoftmaxSpec, QuantisedSoftmaxJob, quantised_softmax_rows),
    OperatorKind(LayerNorm, LayerNormSpec, LayerNormJob, norm_rows),
    OperatorKind(Reflow, ReflowSpec, ReflowJob, reflow_rows),
    OperatorKind(Resample, ResampleSpec, ResampleJob, resample_rows),
    OperatorKind(DepthToSpace, DepthToSpaceSpec, DepthToSpaceJob, depth_to_space_rows),
    *(OperatorKind(op, TypedSpec, TypedJob, typed_rows) for op in (Quantise, Dequantise, LookUp, QuantisedAffine, QuantisedPair)),
)
BY_OPERATOR = {kind.operator: kind for kind in KINDS}
JOBS = [*dict.fromkeys(kind.job for kind in KINDS), DepthwiseJob, PoolJob]  # that of depthwise convolutions on VECTOR is a part of `Conv`
EMITTERS = [*{kind.job: kind.emitter for kind in KINDS}.values(), depthwise_rows, fed_rows]
"""By the number of their jobs; the last one takes pools that are fed (`segment.feeding`)."""
