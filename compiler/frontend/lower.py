"""ONNX -> Graph, the whole way: clean, translate, rewrite."""

from __future__ import annotations

from onnx import ModelProto

from compiler.frontend.clean import clean
from compiler.frontend.handlers import HANDLERS
from compiler.frontend.load import model_digest
from compiler.frontend.recognise import recognise
from compiler.frontend.to_graph import translate
from compiler.ir.graph import Graph
from compiler.rewrites.engine import RewriteReport, rewrite
from compiler.rewrites.rules import LAST_RULES, RULES


def lower(model: ModelProto, digest: str | None = None) -> Graph:
    """A model from `load_model` as a rewritten Graph.  Raises UnsupportedError naming the node, its operator and why."""
    return lower_with_report(model, digest)[0]


def lower_with_report(model: ModelProto, digest: str | None = None) -> tuple[Graph, RewriteReport]:
    """As `lower`, with how often each rewrite fired.  `digest`: of the file, where the caller has it; else of `model`."""
    graph = translate(recognise(clean(model)), HANDLERS, digest if digest is not None else model_digest(model))
    graph, first = rewrite(graph, RULES)
    graph, last = rewrite(graph, LAST_RULES)
    return graph, RewriteReport({name: count + first.fired.get(name, 0) for name, count in last.fired.items()})
