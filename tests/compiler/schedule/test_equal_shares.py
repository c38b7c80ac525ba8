"""Equal shares of grids have one footprint at other places, and DDR has few units; programs are those of a compiler without either."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.pipeline import Compiler, ScheduledShare
from compiler.plan.plan import Infeasible
from compiler.schedule.equal_shares import EqualShares, ExampleShare
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene, block_counts
from compiler.space.knobs import part_counts
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.parts import DataType, Memory
from simulator.npu.transfers import NO_TRANSFERS
from tests.compiled import make_case
from tests.compiler.segment.test_grids import machine_of, product


def plain_compiler(target_graph: TargetGraph) -> Compiler:
    """A compiler whose history of DDR has all granules, and that makes each share's footprint from its own records."""
    plain = Compiler(target_graph)
    plain._equal_shares = plain.synchroniser._units = None
    return plain


def shares_on_grid(compiler: Compiler, cores: int, parts: int) -> list[ScheduledShare]:
    target_graph = compiler.target_graph
    share = cores // parts
    for blocks in [count for count in block_counts(target_graph, 0, 1) if count >= share]:
        plan = decode(target_graph, Gene(0, 1, blocks, cores=tuple(range(cores)), split="channels", parts=parts))
        if plan is not None:
            lowered = compiler.parts(plan_of(target_graph, [plan]))
            return [] if isinstance(lowered, Infeasible) else lowered
    return []


@settings(max_examples=12, deadline=None)
@given(st.integers(8, 120), st.integers(16, 80), st.integers(64, 260), st.sampled_from([4, 6, 8]), st.booleans())
def test_programs_are_those_of_plain_shares(m: int, k: int, n: int, cores: int, direct: bool) -> None:
    target_graph = make_case(product(m, k, n), machine_of(cores, direct), DataType.float16).target_graph
    compiler, plain = Compiler(target_graph), plain_compiler(target_graph)
    for parts in part_counts(cores):  # one program after the other: units change
        shares, plain_shares = shares_on_grid(compiler, cores, parts), shares_on_grid(plain, cores, parts)
        for share, plain_share in zip(shares, plain_shares, strict=True):
            footprint, expected = share.lowered.footprint, plain_share.lowered.footprint
            for name in ("engine", "span", "start", "bound", "touched", "cost", "transfer", "cycles", "totals"):
                np.testing.assert_array_equal(getattr(footprint, name), getattr(expected, name))
            for array, expected_array in zip(footprint.inside, expected.inside, strict=True):
                np.testing.assert_array_equal(array, expected_array)
        if shares:
            assert compiler.link(shares).digest == plain.link(plain_shares).digest


def test_equal_shares_have_one_footprint() -> None:
    target_graph = make_case(product(256, 64, 256), machine_of(8, True), DataType.float16).target_graph
    compiler, plain = Compiler(target_graph), plain_compiler(target_graph)
    shares = shares_on_grid(compiler, 8, 2)
    assert len(shares) == 8
    assert len({id(share.lowered.footprint.span) for share in shares}) == 2  # loads of a core's only block go to its own slot of two
    compiler.link(shares)
    assert compiler.synchroniser._units is not None
    assert compiler.synchroniser._units.count < compiler.synchroniser.footprints.ddr_granules / 4
    plain_shares = shares_on_grid(plain, 8, 2)
    assert len({id(share.lowered.footprint.span) for share in plain_shares}) == 8


@pytest.mark.parametrize("seed", range(6))
def test_other_records_are_not_equal(seed: int) -> None:
    """Any other word than an address of DDR, and an address that is no whole rows away."""
    rng, target_graph = np.random.default_rng(seed), make_case(product(128, 64, 64), machine_of(4, True), DataType.float16).target_graph
    compiler = Compiler(target_graph)
    equal = EqualShares(target_graph, compiler.synchroniser.footprints)
    code = shares_on_grid(compiler, 4, 1)[0].lowered.code
    footprint, order = compiler.synchroniser.footprints.listed(code, 1)
    example = ExampleShare(code, order, footprint, NO_TRANSFERS)
    assert equal.footprint(code, example) is not None
    rows = np.flatnonzero((code[:, isa.OP] == Op.COPY) & (code[:, isa.SRC] == Memory.DDR))
    for _ in range(8):
        changed, row, word = code.copy(), int(rng.integers(len(code))), int(rng.integers(isa.BLOCK))
        changed[row, word] += 1
        if not (word == isa.S0 and row in rows) and not (word == isa.D and code[row, isa.DST] == Memory.DDR):
            assert equal.footprint(changed, example) is None
    activations = [row for row in rows.tolist() if code[row, isa.S0] >= target_graph.memory.constant_blocks]
    for row in islice(activations, 4):
        changed = code.copy()
        changed[row, isa.S0] += 1  # one load alone: the others of its tensor stay
        assert len(activations) == 1 or equal.footprint(changed, example) is None
