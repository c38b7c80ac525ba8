"""ONNX -> Graph, the whole way: recognise, translate, rewrite."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace

from onnx import ModelProto

from compiler.frontend.handlers.dynamic_zero_points import SUMMED, left_alone, unshifted
from compiler.frontend.handlers.handlers import HANDLERS
from compiler.frontend.handlers.pattern_match import recognise
from compiler.frontend.handlers.qdq_fusion import apart, grouped
from compiler.frontend.handlers.qdq_propagation import inward
from compiler.frontend.handlers.quantised import QUANTISED
from compiler.frontend.handlers.to_graph import Handler, translate
from compiler.frontend.onnx_io.attributes import known_shapes
from compiler.frontend.onnx_io.fold import NO_ROOM, foresee
from compiler.frontend.onnx_io.large_constants import LARGE, NOTHING, ExternalData, ModelWithoutWeights, detach, taken_out
from compiler.frontend.onnx_io.load import digest_of, model_digest
from compiler.frontend.onnx_io.memory_budget import ByteBudget
from compiler.frontend.partition.offload_cost import Offload
from compiler.frontend.partition.partition import AllOnHostError, Partition, partition, whole, without_ends
from compiler.frontend.partition.support_check import Able
from compiler.ir.graph import Graph
from compiler.rewrites.centred import with_centred_sums
from compiler.rewrites.engine import RewriteReport, rewrite
from compiler.rewrites.rules import LAST_RULES, RULES
from simulator.npu.errors import BadInputError, UnsupportedError

SUPPORTED: Mapping[str, Handler] = {**HANDLERS, **QUANTISED}


def lower(model: ModelProto, digest: str | None = None, data: ExternalData = NOTHING) -> Graph:
    """A model from `load` as a rewritten Graph.  data: of a hollow one.

    Raises UnsupportedError naming the node, its operator and why.
    """
    return lower_with_report(model, digest, data)[0]


def lower_with_report(model: ModelProto, digest: str | None = None, data: ExternalData = NOTHING) -> tuple[Graph, RewriteReport]:
    """As `lower`, with how often each rewrite fired.  `digest`: of the file, where the caller has it; else of `model`."""
    return rewritten(translated(model, digest, data))


def translated(model: ModelProto, digest: str | None = None, data: ExternalData = NOTHING) -> Graph:
    """Not rewritten."""
    skeleton, tensors = detach(model, LARGE)
    large = taken_out(tensors, data)
    digest = digest_of(skeleton, large) if digest is None else digest
    skeleton = grouped(skeleton, large).model
    foresee(skeleton, large, known_shapes(skeleton.graph), ByteBudget.of(model))
    beside = {name: constant.array() for name, constant in large.items()}
    return translate(recognise(skeleton), SUPPORTED, digest, ByteBudget.of(model), beside)


def rewritten(graph: Graph, without: Collection[str] = ()) -> tuple[Graph, RewriteReport]:
    """A translated graph after all rewrites but those named in `without`."""
    graph, first = rewrite(graph, [rule for rule in RULES if rule.name not in without])
    graph, last = rewrite(graph, [rule for rule in LAST_RULES if rule.name not in without])
    graph = graph if "centred-sums" in without else with_centred_sums(graph)
    return graph, RewriteReport({name: count + first.fired.get(name, 0) for name, count in last.fired.items()})


def lower_partition(
    model: ModelProto, offload: Offload | None = None, data: ExternalData = NOTHING, able: Able | None = None, no_floats: str = ""
) -> tuple[tuple[Graph, ...], Partition]:
    """As `lower`, but what is not supported stays with the host: a graph for every piece.  A hollow model is filled then.

    offload: what decides which pieces beside the heaviest are worth it; None: that one alone.  able: of a graph with integers, whether
    the machine can.  no_floats: why it can no other.  Raises AllOnHostError where nothing can run on the NPU, and BadInputError where
    memory does not do.
    """
    original = model
    try:
        large = taken_out({tensor.name: tensor for tensor in model.graph.initializer if tensor.name in data}, data)
        quantised = any(node.op_type in ("DequantizeLinear", "QuantizeLinear") for node in model.graph.node)
        model = apart(original := inward(model, large) if quantised else model, large)
        split = without_ends(ModelWithoutWeights(model, data).filled()) if quantised else None
        if split is None and (graph := _able(model, None, data, able)) is not None:
            return (graph,), whole(model, data)
        if split is not None and (graph := _able(split.pieces[0].npu, _digest(split), NOTHING, able)) is not None:
            return (graph,), split
        parted = unshifted(model)
        split = partition(ModelWithoutWeights(parted, data).filled(), SUPPORTED, offload, able, no_floats)
        if parted is not model and (unsplit := left_alone(parted, [piece.npu for piece in split.pieces])):
            # what the host has of it is one node, as it was, for the reason that it had in steps
            why = {node.name.removesuffix(SUMMED): node for node in split.host}
            split = partition(ModelWithoutWeights(unshifted(model, unsplit), data).filled(), SUPPORTED, offload, able, no_floats)
            products = {node.name or node.output[0] for node in split.model.graph.node if node.output[0] in unsplit}
            host = tuple(replace(why[node.name], name=node.name) if node.name in products & why.keys() else node for node in split.host)
            split = replace(split, host=host)
        return tuple(lower(piece.npu, _digest(split)) for piece in split.pieces), split
    except AllOnHostError as error:
        error.part = replace(error.part, model=ModelWithoutWeights(original, data).filled())
        raise
    except MemoryError:  # within the budget, and yet more than there is
        raise BadInputError(f"model: {NO_ROOM}") from None


def _digest(part: Partition) -> str:
    """Host nodes are part of what the graphs are of: a plan, a run and a file are of the whole model."""
    text = " ".join([model_digest(part.model), *(model_digest(piece.npu) for piece in part.pieces)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _able(model: ModelProto, digest: str | None, data: ExternalData, able: Able | None) -> Graph | None:
    """All of it as one graph; None where some of it is not supported.  Behind it, nobody holds the constants that were made in vain."""
    try:
        graph = lower(model, digest, data)
        if able is not None and graph.types:
            able(graph)
    except UnsupportedError:
        return None
    return graph
