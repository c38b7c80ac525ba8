"""Every way to run a convolution alone: legal, complete, and bounded from below by what its own program cannot do without."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.cost.operator_space import operator_space
from compiler.ir.operators import Conv
from compiler.ops.conv import ConvSpec
from compiler.pipeline import Compiler, LoweredShare
from compiler.plan.plan import ConvTiling
from compiler.space.decode import decode
from compiler.space.gene import WEIGHTS, Gene, block_counts
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.timing import program_bound, simulate_levels
from tests.graphs import conv, target_graph

MACHINES = ("edge", "tiny", "tpu-like", "ascend310")
LAYERS: dict[str, tuple[tuple[int, int, int, int], list[Conv]]] = {
    "3x3": ((1, 40, 19, 17), [conv("y", "x", (40, 72))]),
    "strided": ((1, 24, 31, 30), [conv("y", "x", (24, 48), 5, 2)]),
    "residual": ((1, 32, 20, 20), [conv("a", "x", (32, 32), 1), conv("y", "a", (32, 32), 1, residual="x")]),
    "two images": ((2, 64, 12, 12), [conv("y", "x", (64, 48), 1)]),
}


def layer(machine: str, name: str) -> TargetGraph:
    shape, operators = LAYERS[name]
    return target_graph(load_machine(machine), shape, *operators)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", LAYERS)
def test_bounds_are_those_of_the_programs(machine: str, name: str) -> None:
    """Random ways compile; their bound is at most the program's own, nearly equal to it, and below every simulated time."""
    u = layer(machine, name)
    k = len(u.operators) - 1
    space = operator_space(u, k, block_counts(u, k, k + 1))
    bounds = {level: space.bound(u, level) for level in u.machine.contention}
    compiler, rng, ratios = Compiler(u), np.random.default_rng(0), []
    assert len(space.points) > 200
    for i in rng.permutation(len(space.points))[:20].tolist():
        parts = compiler.alone(space.plan(i), k)
        assert isinstance(parts, list), f"{space.points[i]}: {parts}"
        program = compiler.link(parts)
        timings = simulate_levels(program, u.machine, tuple(u.machine.contention))
        for level, bound in bounds.items():
            exact = program_bound(program, u.machine, u.machine.contention[level])
            assert bound[i] <= exact <= timings[level].cycles
            ratios.append(bound[i] / exact)
    assert np.median(ratios) > 0.99
    assert min(ratios) > 0.9


def test_every_gene_is_one_of_the_ways() -> None:
    """What the search can name for an operator alone is in the space."""
    u = layer("edge", "3x3")
    spec = u.operators[0]
    assert isinstance(spec, ConvSpec)
    counts = block_counts(u, 0, 1)
    space = operator_space(u, 0, counts)
    assert len(np.unique(space.points, axis=0)) == len(space.points)
    known = {space.plan(i).key for i in range(len(space.points))}
    for blocks in counts:
        for chunk in range(6):
            for choice in (0, 1, 5, 30, 63):
                for weights in WEIGHTS:
                    plan = decode(u, Gene(0, 1, blocks, chunk=chunk, weights=weights, choices=(choice,)))
                    assert plan is not None
                    assert plan.key in known, plan
    kinds = {t.weights for i in range(0, len(space.points), 97) if isinstance(t := space.plan(i).tilings[0], ConvTiling)}
    assert kinds == {"resident", "streamed"}


def test_what_does_not_fit_l1_is_no_way() -> None:
    """96 x 96 x 64 float16 are 1.2 MB: one block does not fit 1 MiB, two blocks fit without a second slot."""
    u = target_graph(load_machine("edge"), (1, 64, 96, 96), conv("y", "x", (64, 16), 1))
    space = operator_space(u, 0, [1, 2, 3])
    assert {tuple(row) for row in np.unique(space.points[:, :2], axis=0).tolist()} == {(2, 1), (3, 1), (3, 2)}
    assert not len(operator_space(u, 0, [1]).points)
    compiler = Compiler(u)
    assert all(isinstance(compiler.segment(space.plan(i), 0), LoweredShare) for i in range(0, len(space.points), 501))
