"""Lowering from ONNX to Graph: pattern recognition, translation, rewrites."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace

from onnx import ModelProto

from compiler.frontend.handlers.dynamic_zero_points import SUMS_SUFFIX, host_products, split_products
from compiler.frontend.handlers.handlers import HANDLERS
from compiler.frontend.handlers.pattern_match import recognise_patterns
from compiler.frontend.handlers.qdq_fusion import fuse_groups, separate_groups
from compiler.frontend.handlers.qdq_propagation import propagate_conversions
from compiler.frontend.handlers.quantised import QUANTISED
from compiler.frontend.handlers.to_graph import Handler, translate
from compiler.frontend.onnx_io.attributes import known_shapes
from compiler.frontend.onnx_io.fold import NO_ROOM, check_folding_budget
from compiler.frontend.onnx_io.large_constants import LARGE, NO_DATA, ExternalData, ModelWithoutWeights, detach, large_constants
from compiler.frontend.onnx_io.load import digest_of, model_digest
from compiler.frontend.onnx_io.memory_budget import ByteBudget
from compiler.frontend.partition.offload_cost import Offload
from compiler.frontend.partition.partition import AllOnHostError, Partition, partition, partition_without_ends, whole_model
from compiler.frontend.partition.support_check import MachineCheck
from compiler.ir.graph import Graph
from compiler.rewrites.centred import with_centred_sums
from compiler.rewrites.engine import RewriteReport, rewrite
from compiler.rewrites.rules import LAST_RULES, RULES
from simulator.npu.errors import BadInputError, UnsupportedError

SUPPORTED: Mapping[str, Handler] = {**HANDLERS, **QUANTISED}


def lower(model: ModelProto, digest: str | None = None, data: ExternalData = NO_DATA) -> Graph:
    """Graph of a model from `load`, rewritten.  data: large weights, if `model` is hollow (`onnx_io.large_constants`).

    Raises UnsupportedError with the node, its operator and the reason.
    """
    return lower_with_report(model, digest, data)[0]


def lower_with_report(model: ModelProto, digest: str | None = None, data: ExternalData = NO_DATA) -> tuple[Graph, RewriteReport]:
    """Graph as from `lower`, and the number of matches of each rewrite.  digest: digest of the model's file; None: that of `model`."""
    return apply_rewrites(translate_model(model, digest, data))


def translate_model(model: ModelProto, digest: str | None = None, data: ExternalData = NO_DATA) -> Graph:
    """Graph of a model before rewrites."""
    skeleton, tensors = detach(model, LARGE)
    large = large_constants(tensors, data)
    digest = digest_of(skeleton, large) if digest is None else digest
    skeleton = fuse_groups(skeleton, large).model
    check_folding_budget(skeleton, large, known_shapes(skeleton.graph), ByteBudget.of(model))
    beside = {name: constant.array() for name, constant in large.items()}
    return translate(recognise_patterns(skeleton), SUPPORTED, digest, ByteBudget.of(model), beside)


def apply_rewrites(graph: Graph, without: Collection[str] = ()) -> tuple[Graph, RewriteReport]:
    """Translated graph after all rewrites except those named in `without`."""
    graph, first = rewrite(graph, [rule for rule in RULES if rule.name not in without])
    graph, last = rewrite(graph, [rule for rule in LAST_RULES if rule.name not in without])
    graph = graph if "centred-sums" in without else with_centred_sums(graph)
    return graph, RewriteReport({name: count + first.fired.get(name, 0) for name, count in last.fired.items()})


def lower_partition(
    model: ModelProto, offload: Offload | None = None, data: ExternalData = NO_DATA, able: MachineCheck | None = None, no_floats: str = ""
) -> tuple[tuple[Graph, ...], Partition]:
    """Graphs of the subgraphs for the NPU, and the partition; unsupported nodes stay on the host.

    offload: cost model that decides on further subgraphs besides the heaviest; None: only the heaviest.  data: large weights, if `model` is
    hollow.  able: check that raises for integer graphs that the machine cannot run.  no_floats: reason why the machine runs no float graph,
    or ''.  Raises AllOnHostError where no node can run on the NPU, and BadInputError where memory is exhausted.
    """
    original = model
    try:
        # first choice: the whole model, or a quantised model without conversions at its ends, as one subgraph
        large = large_constants({tensor.name: tensor for tensor in model.graph.initializer if tensor.name in data}, data)
        quantised = any(node.op_type in ("DequantizeLinear", "QuantizeLinear") for node in model.graph.node)
        model = separate_groups(original := propagate_conversions(model, large) if quantised else model, large)
        split = partition_without_ends(ModelWithoutWeights(model, data).filled()) if quantised else None
        if split is None and (graph := _lower_whole(model, None, data, able)) is not None:
            return (graph,), whole_model(model, data)
        if split is not None and (graph := _lower_whole(split.pieces[0].npu, _digest(split), NO_DATA, able)) is not None:
            return (graph,), split
        parted = split_products(model)
        split = partition(ModelWithoutWeights(parted, data).filled(), SUPPORTED, offload, able, no_floats)
        if parted is not model and (unsplit := host_products(parted, [piece.npu for piece in split.pieces])):
            # a product whose steps all stay on the host becomes one node again, with the reason of its steps
            why = {node.name.removesuffix(SUMS_SUFFIX): node for node in split.host}
            split = partition(ModelWithoutWeights(split_products(model, unsplit), data).filled(), SUPPORTED, offload, able, no_floats)
            products = {node.name or node.output[0] for node in split.model.graph.node if node.output[0] in unsplit}
            host = tuple(replace(why[node.name], name=node.name) if node.name in products & why.keys() else node for node in split.host)
            split = replace(split, host=host)
        return tuple(lower(piece.npu, _digest(split)) for piece in split.pieces), split
    except AllOnHostError as error:
        error.part = replace(error.part, model=ModelWithoutWeights(original, data).filled())
        raise
    except MemoryError:  # within the budget, but not available
        raise BadInputError(f"model: {NO_ROOM}") from None


def _digest(part: Partition) -> str:
    """Digest of the whole model with its subgraphs: a plan, a run and a file belong to the whole model, host nodes included."""
    text = " ".join([model_digest(part.model), *(model_digest(piece.npu) for piece in part.pieces)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _lower_whole(model: ModelProto, digest: str | None, data: ExternalData, able: MachineCheck | None) -> Graph | None:
    """Whole model as one graph; None where a part is unsupported.  After None the folded constants are released."""
    try:
        graph = lower(model, digest, data)
        if able is not None and graph.types:
            able(graph)
    except UnsupportedError:
        return None
    return graph
