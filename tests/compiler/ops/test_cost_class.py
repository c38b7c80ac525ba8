"""Operators of one kind are those that cost the same."""

from __future__ import annotations

from compiler.ops.cost_class import cost_class_of
from compiler.segment.core_channels import channel_parts
from simulator.npu.machine_file import load_machine
from tests.graphs import conv, max_pool, target_graph

EDGE = load_machine("edge")


def test_equal_layers_are_alike_and_others_are_not() -> None:
    layers = (
        conv("a", "x", (32, 32)),
        conv("b", "a", (32, 32)),
        conv("c", "b", (32, 64)),
        max_pool("p", "c", 3, 1, 1),
        max_pool("q", "p", 3, 1, 1),
    )
    u = target_graph(EDGE, (1, 32, 24, 24), *layers)
    a, b, c, p, q = (cost_class_of(u, spec) for spec in u.operators)
    assert a is b
    assert len({a, c, p, q}) == 4
    half = target_graph(EDGE, (1, 32, 12, 12), *layers)
    assert cost_class_of(half, half.operators[0]) is not a, "it has other blocks"


def test_network_on_another_machine_has_other_kinds() -> None:
    target_graphs = [target_graph(load_machine(name), (1, 32, 24, 24), conv("a", "x", (32, 32))) for name in ("edge", "tiny", "edge")]
    first, other, again = (cost_class_of(u, u.operators[0]) for u in target_graphs)
    assert first is again
    assert first is not other


def test_equal_parts_of_a_channel_split_are_alike() -> None:
    u = target_graph(EDGE, (1, 32, 24, 24), conv("a", "x", (32, 64)))
    parts = channel_parts(u, 0, 1, 2)
    assert isinstance(parts, tuple)
    left, right = (cost_class_of(part, part.operators[0]) for part in parts)
    assert left is right
    assert left is not cost_class_of(u, u.operators[0])
