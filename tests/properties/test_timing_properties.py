"""What must hold of the timing of any legal program, and equality with the plain model of `reference_timing`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.ddr import ContentionTrace
from simulator.npu.cycles import price
from simulator.npu.dram import DRAMS
from simulator.npu.isa import Op
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.machine_parts import Dma, SystolicUnit
from simulator.npu.parts import Engine
from simulator.npu.program import Program
from simulator.timing import Timing, prepare, program_bound, simulate, simulate_levels, simulate_trace
from tests.ddr_rates import with_path, with_rates
from tests.integers import with_integers
from tests.programs import programs, random_program
from tests.simulator.reference_timing import reference

TINY = with_integers(load_machine("tiny"))
SHARES = st.integers(1, SHARE_UNIT) | st.sampled_from([SHARE_UNIT, SHARE_UNIT // 2, SHARE_UNIT // 4])
DMAS = (Engine.MTE2, Engine.MTE3)


def array(dataflow: str, pipelined: bool) -> SystolicUnit:
    """6 x 10 cells: fill 14 (output-stationary) or 20 cycles."""
    passes = {"float16": 1, "float32": 2}
    return SystolicUnit(kind="systolic", rows=6, columns=10, dataflow=dataflow, pipelined=pipelined, passes=passes, startup_cycles=1)


UNITS = [TINY.matrix, *(array(flow, pipelined) for flow in ("output-stationary", "weight-stationary") for pipelined in (False, True))]


def variant(
    issue: int,
    depth: int,
    latency: int,
    outstanding: int,
    read_cap: int,
    write_cap: int,
    remote: int,
    launch: int,
    target_graph: int,
    dram: str = "",
    ub_rate: float = 32,
    startup: int = 0,
    load_ports: int = 1,
    store_ports: int = 1,
) -> Machine:
    ddr = {"latency_cycles": latency, "outstanding": outstanding, "rate": "pins" if dram else "effective", "dram": dram or None}
    base = with_path(with_rates(TINY, read_cap, write_cap, **ddr), "DDR->UB", bytes_per_cycle=ub_rate, startup_cycles=startup)
    dma = Dma(load_ports=min(load_ports, outstanding), store_ports=min(store_ports, outstanding))
    flags = TINY.flags.model_copy(update={"between_cores_cycles": remote})
    return base.model_copy(
        update={
            "issue_cycles": issue, "queue_depth": depth, "flags": flags, "cores": 3,
            "launch_cycles": launch, "matrix": UNITS[target_graph], "dma": dma,
        }
    )  # fmt: skip


MACHINES = st.builds(
    variant,
    st.integers(0, 2), st.sampled_from([1, 2, 3, 16]), st.sampled_from([0, 1, 4, 9]), st.integers(1, 4),
    st.sampled_from([7, 16, 32, 48]), st.sampled_from([5, 16, 32]), st.integers(0, 5), st.sampled_from([0, 0, 17]), st.integers(0, 4),
    st.sampled_from(["", "", *sorted(DRAMS)]), st.sampled_from([32, 3, 12.8]), st.sampled_from([0, 0, 2]),
    st.sampled_from([1, 1, 2, 3]), st.sampled_from([1, 1, 2, 4]),
)  # fmt: skip


def same(a: Timing, b: Timing) -> bool:
    return (a.cycles, a.load_store_cycles, a.compute_cycles, a.busy_cycles.tolist()) == (
        b.cycles, b.load_store_cycles, b.compute_cycles, b.busy_cycles.tolist(),
    )  # fmt: skip


def compare(program: Program, machine: Machine, timing: Timing, shares: list[tuple[int, int]], divisor: int = 0, added: int = 0) -> None:
    """Every instruction of `timing` starts and ends when the plain model says."""
    expected = reference(program, machine, shares, divisor=divisor, added=added)
    assert timing.recorded is not None
    for core, entries in enumerate(expected.entries):
        assert timing.recorded.dispatch[core].tolist() == [x.dispatched for x in entries]
        assert timing.recorded.end[core].tolist() == [x.completed for x in entries]
        starts = [x.begun if x.is_transfer else x.reached if x.op == Op.WAIT else x.left for x in entries]
        assert timing.recorded.start[core].tolist() == starts
        for engine in Engine:
            fixed = sum(x.busy for x in entries if x.engine == engine)
            issue = len(entries) * machine.issue_cycles if engine == Engine.SCALAR else 0
            assert timing.busy_cycles[core, engine] == fixed + issue + expected.moved.get((core, engine), 0)
    assert timing.cycles == expected.cycles
    assert timing.load_store_cycles == expected.load_store_cycles
    assert timing.compute_cycles == expected.compute_cycles


@settings(max_examples=150, deadline=None)
@given(st.data(), MACHINES, st.sampled_from([SHARE_UNIT, SHARE_UNIT // 2, 20_000, 9_001]), st.sampled_from([0, 0, 3]))
def test_equals_the_plain_model(data: st.DataObject, machine: Machine, share: int, added: int) -> None:
    program = data.draw(programs(machine, 30))
    compare(program, machine, simulate(program, machine, Level.of_units(share, added), record=True), [(0, share)], added=added)


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_plain_model_on_longer_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pick = [rng.choice(v) for v in ([0, 1], [2, 4, 16], [0, 4], [1, 2, 3], [7, 32], [5, 16], [0, 3], [0, 21], [0, 2, 4])]
    machine = variant(*(int(v) for v in pick))
    program = random_program(machine, seed, 90)
    share = int(rng.integers(SHARE_UNIT // 5, SHARE_UNIT))
    compare(program, machine, simulate(program, machine, Level.of_units(share), record=True), [(0, share)])


@settings(max_examples=30, deadline=None)
@given(programs(TINY, 25), st.lists(st.tuples(st.integers(1, 30), st.integers(9_000, SHARE_UNIT)), max_size=5))
def test_a_changing_load_equals_the_plain_model(program: Program, steps: list[tuple[int, int]]) -> None:
    cycles = np.cumsum([0, *(gap for gap, _ in steps)]).tolist()
    shares = list(zip(cycles, [SHARE_UNIT, *(share for _, share in steps)], strict=True))
    compare(program, TINY, simulate_trace(program, TINY, ContentionTrace.of(shares), record=True), shares)


@settings(max_examples=30, deadline=None)
@given(programs(TINY, 25), st.integers(1, 4))
def test_transfers_alone_equal_the_plain_model(program: Program, divisor: int) -> None:
    timing = simulate(program, TINY, NO_CONTENTION, shared=False, rate_divisor=divisor, record=True)
    compare(program, TINY, timing, [(0, SHARE_UNIT)], divisor)


@settings(max_examples=150, deadline=None)
@given(st.data(), MACHINES, SHARES, st.sampled_from([0, 0, 5]))
def test_bounds(data: st.DataObject, machine: Machine, share: int, added: int) -> None:
    program = data.draw(programs(machine, 60))
    p, level = prepare(program, machine), Level.of_units(share, added)
    timing = simulate(p, machine, level)
    shortest = simulate(p, machine, level, shared=False)
    longest = simulate(p, machine, level, shared=False, rate_divisor=max(1, p.dma_ports))
    assert program_bound(p, machine, level) <= timing.cycles
    # stricter than the bound with one rounding cycle per transfer: rates are whole units, so a transfer never needs the extra one
    assert shortest.cycles <= timing.cycles <= longest.cycles
    assert timing.busy_cycles.max(initial=0) <= timing.cycles
    assert timing.compute_cycles <= timing.busy_cycles[:, [Engine.CUBE, Engine.VECTOR]].sum()
    assert timing.load_store_cycles <= timing.busy_cycles[:, DMAS].sum()
    assert timing.load_store_cycles <= timing.cycles * machine.cores


@settings(max_examples=100, deadline=None)
@given(st.data(), MACHINES, SHARES, SHARES, st.integers(0, 9), st.integers(0, 9), st.integers(0, 3))
def test_path_bounds_never_fall_at_heavier_levels(
    data: st.DataObject, machine: Machine, a: int, b: int, early: int, late: int, divisor: int
) -> None:
    """The longest path with every transfer alone is monotone in the share, in the level's latency and in the divisor."""
    p = prepare(data.draw(programs(machine, 40)), machine)
    light, heavy = Level.of_units(max(a, b), min(early, late)), Level.of_units(min(a, b), max(early, late))
    of = simulate(p, machine, light, shared=False, rate_divisor=1 + divisor).cycles
    assert of <= simulate(p, machine, heavy, shared=False, rate_divisor=1 + divisor).cycles
    assert of <= simulate(p, machine, light, shared=False, rate_divisor=2 + divisor).cycles
    assert program_bound(p, machine, light) <= program_bound(p, machine, heavy)


@settings(max_examples=150, deadline=None)
@given(st.data(), MACHINES, st.integers(1, 2), st.integers(2, 3), SHARES)
def test_ports_slow_only_where_they_divide_ddr(data: st.DataObject, base: Machine, ports: int, times: int, share: int) -> None:
    """Every transfer alone, some times the ports are never slower.  So neither are they where DDR has the rate of all paths at once, and
    else no slower than the fewer at the least rate that the more may have."""
    ddr = base.ddr.model_copy(update={"outstanding": 8})
    few, many = (base.model_copy(update={"ddr": ddr, "dma": Dma(load_ports=n, store_ports=n)}) for n in (ports, ports * times))
    program, level = data.draw(programs(base, 60)), Level.of_units(share)
    p, q = prepare(program, few), prepare(program, many)
    divisor = max(1, q.dma_ports)
    least = simulate(p, few, level, shared=False, rate_divisor=divisor).cycles
    assert simulate(q, many, level, shared=False, rate_divisor=divisor).cycles <= least
    assert simulate(q, many, level).cycles <= least
    assert program_bound(q, many, level) <= simulate(q, many, level).cycles
    wide = {"ddr": ddr.model_copy(update={"bytes_per_cycle": 1 << 20})}
    few, many = few.model_copy(update=wide), many.model_copy(update=wide)
    assert simulate(program, many, NO_CONTENTION).cycles <= simulate(program, few, NO_CONTENTION).cycles


@settings(max_examples=60, deadline=None)
@given(programs(TINY, 60), SHARES)
def test_bytes_are_conserved(program: Program, share: int) -> None:
    timing = simulate(program, TINY, Level.of_units(share))
    costs = [price(code, TINY) for code in program.streams]
    assert timing.ddr_read_bytes == sum(int(c.useful[c.useful > 0].sum()) for c in costs)
    assert timing.ddr_write_bytes == -sum(int(c.useful[c.useful < 0].sum()) for c in costs)
    assert timing.bus_units == sum(int(c.bus.sum()) for c in costs)
    assert timing.instructions == program.instructions
    # what the port could give while anything moved covers what was taken
    assert timing.bus_units <= TINY.ddr.bytes_per_cycle * max(share, TINY.cores * 2) * timing.load_store_cycles


@settings(max_examples=60, deadline=None)
@given(programs(TINY, 60))
def test_work_on_chip_is_independent_of_level(program: Program) -> None:
    levels = list(simulate_levels(program, TINY).values())
    on_chip = [e for e in Engine if e not in DMAS]
    for timing in levels[1:]:
        assert (timing.busy_cycles[:, on_chip] == levels[0].busy_cycles[:, on_chip]).all()


@settings(max_examples=60, deadline=None)
@given(programs(TINY, 40), SHARES)
def test_the_same_result_on_every_run(program: Program, share: int) -> None:
    p = prepare(program, TINY)
    first = simulate(p, TINY, Level.of_units(share))
    simulate(p, TINY, Level.of_units(SHARE_UNIT // 3))
    assert same(first, simulate(p, TINY, Level.of_units(share)))
    assert same(first, simulate(program, TINY, Level.of_units(share), record=True))
    alone = simulate_levels(p, TINY, ["severe"])["severe"]
    assert same(alone, simulate_levels(p, TINY, ["none", "severe"])["severe"])


@settings(max_examples=100, deadline=None)
@given(programs(TINY, 60), SHARES, SHARES)
def test_bandwidth_is_never_harmful_with_one_dma_queue(program: Program, a: int, b: int) -> None:
    code = program.streams[0]
    writes = (code[:, 0] == Op.COPY) & (code[:, 1] == Engine.MTE3)
    one = Program(program.machine, (code[~writes],), program.memory)
    flags = np.isin(one.streams[0][:, 0], (Op.SET, Op.WAIT))
    # flags of the other core went with it; those that stay within this one are in pairs
    inside = one.streams[0][:, 10] == 0
    p = prepare(Program(program.machine, (one.streams[0][~flags | inside],), program.memory), TINY)
    assert p.dma_ports <= 1
    assert simulate(p, TINY, Level.of_units(max(a, b))).cycles <= simulate(p, TINY, Level.of_units(min(a, b))).cycles
