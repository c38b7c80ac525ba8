"""Engine that applies rewrite rules to a fixed point.

A rule matches one operator (and, through `GraphView`, its neighbours) and returns the replacement.  The replacement stands at the position
of that operator, the last of the matched ones, so the order stays topological.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from compiler.ir.graph import Graph
from compiler.ir.operators import Operator, Shape
from compiler.ir.quantised.parameters import Quantisation

MAX_SWEEPS = 1000  # more mean that rules undo each other


@dataclass(frozen=True)
class Match:
    """Result of a rule: operators `gone` are removed (the matched operator is one of them), operators `new` replace them.

    alias: tensor -> tensor that replaces it (where an operator is dropped).
    """

    gone: tuple[Operator, ...]
    new: tuple[Operator, ...] = ()
    alias: dict[str, str] = field(default_factory=dict)


class RecordingProducers(dict[str, Operator]):
    """Operators by output tensor.  looked_up: names of the tensors that a rule requested."""

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        super().__init__(operators)
        self.looked_up = set[str]()

    def __getitem__(self, name: str) -> Operator:
        self.looked_up.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: None = None) -> Operator | None:  # type: ignore[override]
        self.looked_up.add(name)
        return super().get(name, default)


@dataclass(frozen=True)
class GraphView:
    """Neighbourhoods of a graph, constant during one sweep."""

    producers: RecordingProducers
    uses: Counter[str]  # reads of a tensor; a model output counts as one
    outputs: frozenset[str]
    inputs: frozenset[str]
    shapes: dict[str, Shape]
    position: dict[str, int]  # tensor -> index of its producer
    types: Mapping[str, Quantisation] = field(default_factory=dict)  # quantisation of integer tensors

    @cached_property
    def by_kind_and_inputs(self) -> dict[tuple[type, tuple[str, ...]], list[Operator]]:
        """Operators by kind and inputs, in order."""
        groups: dict[tuple[type, tuple[str, ...]], list[Operator]] = {}
        for op in self.producers.values():
            groups.setdefault((type(op), op.inputs), []).append(op)
        return groups

    def only_use(self, tensor: str) -> bool:
        """Whether a tensor has one reader and is no model output."""
        return self.uses[tensor] == 1 and tensor not in self.outputs


@dataclass(frozen=True)
class RewriteRule:
    """Named rewrite.  `apply` returns None where it does not match."""

    name: str
    apply: Callable[[Operator, GraphView], Match | None]


@dataclass(frozen=True)
class RewriteReport:
    """Number of matches of each rule, in the order of the rules."""

    fired: dict[str, int]

    def __str__(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.fired.items() if count) or "nothing"


def view_of(graph: Graph) -> GraphView:
    uses: Counter[str] = Counter(name for op in graph.operators for name in op.inputs)
    uses.update(port.tensor for port in graph.outputs)
    return GraphView(
        RecordingProducers(graph.producers()),
        uses,
        frozenset(port.tensor for port in graph.outputs),
        frozenset(port.tensor for port in graph.inputs),
        graph.shapes,
        {op.y: i for i, op in enumerate(graph.operators)},
        graph.types,
    )


def rewrite(graph: Graph, rules: Sequence[RewriteRule]) -> tuple[Graph, RewriteReport]:
    """Graph at the fixed point of the rules, verified after every sweep."""
    fired = {rule.name: 0 for rule in rules}
    for _ in range(MAX_SWEEPS):
        swept = _sweep(graph, rules, fired)
        if swept is None:
            return graph, RewriteReport(fired)
        graph = swept
        graph.verify()
    raise AssertionError(f"{graph.name}: rules still fire after {MAX_SWEEPS} sweeps: {fired}")


def _sweep(graph: Graph, rules: Sequence[RewriteRule], fired: dict[str, int]) -> Graph | None:
    view = view_of(graph)
    replacements: dict[int, tuple[Operator, ...]] = {}  # position -> operators in its place
    touched: set[str] = set()  # outputs of operators that this sweep has changed already
    removed: set[str] = set()  # tensors that this sweep has left without a producer
    alias: dict[str, str] = {}
    for index, op in enumerate(graph.operators):
        if op.y in touched:
            continue
        for rule in rules:
            view.producers.looked_up.clear()
            match = rule.apply(op, view)
            if match is None or any(operator.y in touched for operator in match.gone):
                continue
            # an operator that the rule looked up may be replaced by now: leave the match to the next sweep
            if not touched.isdisjoint(view.producers.looked_up):
                continue
            names = [name for operator in (*match.gone, *match.new) for name in operator.inputs]
            if any(name in alias or name in removed for name in (*names, *match.alias.values())):
                continue
            for operator in match.gone:
                replacements[view.position[operator.y]] = ()
                touched.add(operator.y)
            replacements[index] = match.new
            touched.update(operator.y for operator in match.new)
            touched.update(match.alias.values())  # the tensor has new readers, which rules see in the next sweep
            removed |= {operator.y for operator in match.gone} - {operator.y for operator in match.new}
            for old, new in match.alias.items():
                alias[old] = alias.get(new, new)
            fired[rule.name] += 1
            break
    if not replacements:
        return None
    operators = [operator for index, op in enumerate(graph.operators) for operator in replacements.get(index, (op,))]
    shapes = {name: graph.shapes[name] for name in (*(port.tensor for port in graph.inputs), *graph.constants)}
    final = []
    for op in operators:
        renamed = op.with_inputs([_resolve(alias, name) for name in op.inputs])
        shapes[renamed.y] = renamed.output_shape([shapes[name] for name in renamed.inputs])
        final.append(renamed)
    outputs = tuple(replace(port, tensor=_resolve(alias, port.tensor)) for port in graph.outputs)
    return replace(graph, operators=tuple(final), shapes=shapes, outputs=outputs)


def _resolve(alias: dict[str, str], name: str) -> str:
    while name in alias:
        name = alias[name]
    return name
