"""What users are told of convolutions whose groups are no whole planes."""

from __future__ import annotations

import pytest

from compiler.diagnostics.grouped_convs import GroupStructure, find_group_structure, weights_multiplied
from compiler.dump.target_graph import unit_lines
from compiler.ops.conv import product_of
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan
from compiler.space.initial import layer_by_layer
from tests.everywhere import MACHINES
from tests.graphs import conv, target_graph
from tuner.measure.macs import program_macs


def test_shared_blocks_are_multiplied_for_both_groups() -> None:
    """Of 68 channels in five blocks the first 34 reach into the third: that block of columns needs all 5 of k, the others 3 each."""
    u = target_graph(MACHINES["edge"], (2, 68, 4, 4), conv("y", "x", (68, 68), 1, groups=2))
    found = find_group_structure([u])
    assert found == GroupStructure(1, 2 * 16 * 68 * 34, 2 * 16 * 17 * 16 * 16)
    assert found.line() == "group structure: 1 convolution multiplies 1.9 times its weights, since groups are no whole planes"
    assert any(line.endswith("multiplies 1.9 times its weights") for line in unit_lines(u))
    twice = find_group_structure([u, u])
    assert twice == GroupStructure(2, 2 * found.macs, 2 * found.multiplied_macs)
    assert twice.line().startswith("group structure: 2 convolutions multiply 1.9 times their weights")


@pytest.mark.parametrize("kernel", [1, 3])
def test_records_multiply_at_least_that(kernel: int) -> None:
    """And less than all blocks, of pixels that fill the rows of the matrix unit."""
    u = target_graph(MACHINES["edge"], (1, 204, 8, 8), conv("y", "x", (204, 204), kernel, groups=6))
    compiler, found, spec = Compiler(u), find_group_structure([u]), product_of(u.operators[0])
    assert found is not None
    assert spec is not None
    assert spec.needed.size
    plan = layer_by_layer(u)
    assert isinstance(plan, Plan)
    program = compiler.compile(plan)
    assert not isinstance(program, Infeasible)
    dense = 64 * spec.groups * spec.n1 * spec.k1 * 16 * 16
    assert found.macs < found.multiplied_macs <= program_macs(program) < dense


@pytest.mark.parametrize(("channels", "groups"), [(64, 1), (64, 2), (64, 64)])
def test_whole_planes_and_depthwise_are_not_reported(channels: int, groups: int) -> None:
    u = target_graph(MACHINES["edge"], (1, channels, 4, 4), conv("y", "x", (channels, channels), groups=groups))
    spec = product_of(u.operators[0])
    assert spec is not None
    assert find_group_structure([u]) is None
    assert weights_multiplied(spec) == {1: None, 2: 64 * 32 * 9, 64: 64 * 16 * 9}[groups]
