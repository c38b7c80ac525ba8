"""The table of segments: small ones by hand, and what must add up in any run."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.build import default_plan, operators
from compiler.codegen.lower_segment import Infeasible
from compiler.frontend import lower
from compiler.ops.conv import ConvSpec
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.segment.blocks import cut_blocks
from compiler.segment.blocks import rows_needed as rows_that_are_read
from simulator.breakdown import breakdown, program_reuse
from simulator.npu import isa
from simulator.npu.container import OperatorEntry, SegmentEntry
from simulator.npu.isa import Op
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT, Level
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine, Memory
from simulator.npu.program import Code
from simulator.timeline import Timeline, timeline
from tests.models import small_model
from tests.plans import random_plan
from tests.programs import copy, program, random_program, record

TINY, EDGE = load_machine("tiny"), load_machine("edge")
DDR, L1, L0A, L0C, UB = Memory.DDR, Memory.L1, Memory.L0A, Memory.L0C, Memory.UB


def vector(cycles: int) -> Code:
    return record(Op.VRELU, Engine.VECTOR, 1, cycles, 1, 1, 1, 1, src=UB, dst=UB, d=0, s=(0,))


def mmad(k: int) -> Code:
    return record(Op.MMAD, Engine.CUBE, 16, k, 1, 0, src=L0A, dst=L0C, d=0, s=(0, 0))


def fixpipe() -> Code:
    return record(Op.FIXPIPE, Engine.FIXPIPE, 16, 16, 1, 16, 0, 0, src=L0C, dst=UB, d=32, s=(0,))


def of(segment: int, operator: int, *rows: Code) -> list[Code]:
    for row in rows:
        row[isa.TAG] = segment << 16 | operator
    return list(rows)


def run(*rows: Code, share: int = SHARE_UNIT) -> Timeline:
    return timeline(program(TINY, list(rows)), TINY, Level.of_units(share))


def test_time_is_cut_at_the_ends_of_segments() -> None:
    # segment 0: vector 0..10; segment 1: MTE1 0..30; segment 2 ends before segment 1 does
    t = run(*of(0, 0, vector(10)), *of(1, 1, copy(TINY, L1, UB, 30, to=64)), *of(2, 2, vector(15)))
    zero, one, two = breakdown(t)
    assert [(s.start, s.end, s.own_cycles, s.alone_cycles) for s in (zero, one, two)] == [(0, 10, 10, 0), (0, 30, 20, 5), (10, 25, 0, 0)]
    assert (one.bound, one.utilisation["MTE1"], one.utilisation["VECTOR"], one.utilisation["CUBE"]) == ("MTE1", 1.0, 0.75, 0.0)
    assert (two.bound, two.utilisation, two.cycles) == (None, {}, 15)
    assert (zero.operators, zero.blocks) == (1, None)


def test_a_run_without_work() -> None:
    assert breakdown(run()) == ()


def test_ddr_is_the_union_of_reads_and_writes() -> None:
    # read 4..14; write of 2 blocks at half a block per cycle: 4..8 of which the read takes half the port
    t = run(*of(3, 0, copy(TINY, DDR, L1, 10), copy(TINY, UB, DDR, 2, to=100)))
    (one,) = breakdown(t)
    assert (one.segment, one.start, one.end, one.own_cycles) == (3, 4, 16, 16)
    assert (one.bound, one.utilisation["DDR"], one.utilisation["MTE2"]) == ("DDR", 12 / 16, 0.0)
    assert (one.ddr_read_bytes, one.ddr_write_bytes, one.loads, one.macs, one.halo) == (320, 64, 1, 0, None)


def test_operators_and_blocks_per_load() -> None:
    # operator 0 loads in both blocks, twice in the second; operator 1 works in both and loads in one; operator 2 works in one
    rows = [
        *of(0, 0, *(copy(TINY, DDR, L1, 8) for _ in range(3))),
        *of(0, 1, vector(1), copy(TINY, DDR, L1, 8), vector(1)),
        *of(0, 2, vector(1)),
    ]
    for row, block in zip(rows, (0, 1, 1, 0, 1, 1, 1), strict=True):
        row[isa.BLOCK] = block
    one, other = breakdown(run(*rows, *of(1, 3, copy(TINY, UB, DDR, 1, to=100))))
    assert (one.steps, one.loading_steps, one.loads, one.operators_per_load) == (5, 3, 4, 5 / 3)
    # operators 0 and 1 load; both run in two blocks, in three of these four steps with a load
    assert (one.loader_steps, one.blocks_per_load) == (4, 4 / 3)
    assert (other.steps, other.loading_steps, other.operators_per_load, other.blocks_per_load) == (1, 0, None, None)
    whole = program_reuse((one, other))
    assert (whole.segments, whole.blocks, whole.loads, whole.halo) == (2, None, 4, None)
    assert (whole.operators_per_load, whole.blocks_per_load) == (2.0, 4 / 3)
    assert (whole.ddr_read_bytes, whole.ddr_write_bytes) == (4 * 8 * 32, 32)
    assert program_reuse((other,)).operators_per_load is None


def test_halo_of_a_program_is_weighted_by_work() -> None:
    rows = [*of(0, 0, mmad(2), fixpipe(), mmad(2), fixpipe()), *of(1, 1, mmad(2), fixpipe())]
    macs = 16 * 32 * 16
    # operator 0 is done twice, operator 1 once; three times as much of operator 1 is needed
    found = breakdown(
        run(*rows), (SegmentEntry(1, 2), SegmentEntry(1, 1)), (OperatorEntry("a", macs, 256), OperatorEntry("b", 3 * macs, 256))
    )
    assert [row.halo for row in found] == [2.0, 1.0]
    assert program_reuse(found).halo == 1.25
    assert program_reuse(found).blocks == 3


def test_halo_and_padding() -> None:
    t = run(*of(0, 0, mmad(2), fixpipe(), mmad(2), fixpipe()))
    macs = 2 * 16 * 32 * 16
    # 256 outputs are needed and 512 handed out; of what is multiplied then, a third is padding
    (one,) = breakdown(t, (SegmentEntry(1, 4),), (OperatorEntry("a", macs // 3, 256),))
    assert (one.macs, one.needed_macs, one.blocks) == (macs, macs // 3, 4)
    assert one.halo == 2.0
    assert one.padding == pytest.approx(1.5, rel=1e-3)
    (one,) = breakdown(t)
    assert (one.macs, one.needed_macs, one.halo, one.padding) == (macs, None, None, None)


@pytest.mark.parametrize("seed", range(8))
def test_what_adds_up_in_any_run(seed: int) -> None:
    p = random_program(TINY, seed, 120)
    rng = np.random.default_rng(seed)
    for code in p.streams:
        code[:, isa.TAG] = rng.integers(0, 5, len(code)) << 16
    t = timeline(p, TINY, NO_CONTENTION)
    found = breakdown(t)
    assert sum(s.own_cycles for s in found) == t.end[t.work].max(initial=0)
    assert sum(s.ddr_read_bytes - s.ddr_write_bytes for s in found) == t.useful.sum()
    for s in found:
        assert 0 <= s.alone_cycles <= s.cycles
        assert all(0 <= value <= 1 for value in s.utilisation.values())


def test_halo_of_plans_is_recomputed_by_blocks() -> None:
    target_graph = make_unit(lower(small_model("conv_chain")), EDGE, DataType.float16)
    compiler, table = Compiler(target_graph), operators(target_graph)
    more = reused = 0
    plans = [default_plan(target_graph), *(random_plan(target_graph, np.random.default_rng(seed)) for seed in range(32))]
    for plan in plans:
        compiled = None if plan is None else compiler.compile(plan)
        if plan is None or compiled is None or isinstance(compiled, Infeasible):
            continue
        t = timeline(compiled, EDGE, NO_CONTENTION)
        found = breakdown(t, tuple(SegmentEntry(len(s.operators), s.blocks) for s in plan.segments), table)
        assert [s.operators for s in found] == [len(s.operators) for s in plan.segments]
        assert [s.blocks for s in found] == [s.blocks for s in plan.segments]
        assert all(s.loading_steps <= s.loader_steps <= s.steps <= s.operators * s.blocks for s in found)
        assert all(s.operators_per_load == 1 for s in found if s.operators == 1 and s.blocks == 1)
        reused += any((s.operators_per_load or 0) >= 1.5 for s in found)
        first = 0
        for s, segment in zip(found, plan.segments, strict=True):
            blocks = cut_blocks(target_graph, first, first + s.operators, s.blocks or 1, segment.caching)
            needed_rows = rows_that_are_read(target_graph)
            done = needed = 0.0
            for k in range(s.operators):
                spec = target_graph.operators[first + k]
                if isinstance(spec, ConvSpec):
                    done += spec.macs * sum(rows * count for rows, count in blocks.heights[k].items()) / spec.out_h
                    needed += spec.macs * needed_rows[first + k].size / spec.out_h
            first += s.operators
            if needed:
                assert s.halo == pytest.approx(done / needed, rel=1e-3)
                assert s.halo is not None
                assert s.padding is not None
                assert s.needed_macs is not None
                assert s.macs == pytest.approx(s.needed_macs * s.halo * s.padding)
                more += s.halo > 1.01
    assert more >= 3
    assert reused
