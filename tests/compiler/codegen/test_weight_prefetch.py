"""Weights before a segment's first tensor: which, how many, and that a program is faster for it where its predecessor computes."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.weight_prefetch import prefetch_weights
from compiler.pipeline import Compiler, LoweredShare
from compiler.plan.plan import Plan
from compiler.space.decode import decode_all
from compiler.space.gene import Gene, ahead_sizes
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, Engine, Memory
from simulator.timing import simulate_levels
from tests.graphs import conv, target_graph

EDGE = load_machine("edge")


@pytest.fixture(scope="module")
def two() -> TargetGraph:
    """A convolution of much work and few weights, and one of many weights."""
    return target_graph(EDGE, (1, 64, 28, 28), conv("a", "x", (64, 64), 3), conv("y", "a", (512, 64), 3))


def planned(u: TargetGraph, ahead_kib: int) -> Plan:
    plan = decode_all(u, (Gene(0, 1), Gene(1, 2, ahead_kib=ahead_kib, lookahead=1)))
    assert isinstance(plan, Plan)
    return plan


def lowered(u: TargetGraph, plan: Plan) -> LoweredShare:
    part = Compiler(u).segment(plan.segments[1], 1)
    assert isinstance(part, LoweredShare)
    return part


def constants(u: TargetGraph, code: np.ndarray) -> np.ndarray:
    """bool [records]: loads of constants."""
    return (code[:, isa.ENGINE] == Engine.MTE2) & (code[:, isa.SRC] == Memory.DDR) & (code[:, isa.S0] < u.memory.constant_blocks)


def test_a_gene_names_up_to_half_of_l1(two: TargetGraph) -> None:
    assert ahead_sizes(two) == (0, 16, 32, 64, 128, 256, 512)


@pytest.mark.parametrize("size", [256, 512])
def test_weights_ahead_come_first_and_others_in_order(two: TargetGraph, size: int) -> None:
    code = lowered(two, planned(two, 0)).code.copy()
    code[:, isa.TAG] = np.arange(len(code))
    brought = code.copy()
    prefetch_weights(brought, two.machine, two.memory.constant_blocks, size)
    order = brought[:, isa.TAG]
    assert sorted(order.tolist()) == list(range(len(code)))
    assert np.array_equal(brought, code[order])
    first_other = int(np.argmin(constants(two, brought)))
    moved = brought[:first_other]
    sizes = moved[:, isa.C_LENGTH].astype(np.int64) * moved[:, isa.C_COUNT] * moved[:, isa.C_COUNT2] * BLOCK_BYTES
    assert 0 < sizes.sum() <= size * 1024
    assert (moved[:, isa.DST] == Memory.L1).all(), "what UB gets waits for the segment before, and whatever is behind it too"
    assert (np.diff(order[:first_other]) > 0).all()
    assert (np.diff(order[first_other:]) > 0).all()


def test_prefetch_is_planned_and_saves_a_border(two: TargetGraph) -> None:
    compiler = Compiler(two)
    cycles = {}
    for size in (0, 256):
        program = compiler.compile(planned(two, size))
        assert not hasattr(program, "what"), program
        cycles[size] = simulate_levels(program, EDGE, ("none",))["none"].cycles  # type: ignore[arg-type]
    assert lowered(two, planned(two, 256)).code.tobytes() != lowered(two, planned(two, 0)).code.tobytes()
    assert cycles[256] < cycles[0]
