"""A program's values and its times have the same work, and neither changes the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from compiler.space.initial import layer_by_layer
from simulator.ddr import ContentionTrace
from simulator.functional import Counters, Memories, apply, execute
from simulator.host_layout import load_input
from simulator.npu import isa
from simulator.npu.isa import OPS, Op
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory
from simulator.npu.program import Code, Program
from simulator.sanitizer import sanitize_program
from simulator.timing import Timing, prepare, simulate, simulate_trace
from tests.compiled import Case, make_case
from tests.compiler.schedule.test_synchronize import pairs, without
from tests.ddr_rates import with_rates
from tests.integers import with_integers
from tests.models import small_model
from tests.programs import copy, flag_set, flag_wait, program, programs, random_program, record
from tests.simulator.test_trace import check_lanes

TINY = load_machine("tiny")
INTEGERS = with_integers(TINY)
FLAGS = (int(Op.SET), int(Op.WAIT))
Place = tuple[int, int]  # core, instruction


# the same work --------------------------------------------------------------------------------------------------------


def by_the_records(program: Program) -> tuple[int, int, int]:
    """MACs, bytes read from DDR and bytes written to it, from the parameters of every record."""
    macs = read = written = 0
    for code in program.streams:
        for row in code.tolist():
            p = dict(zip(OPS[Op(row[isa.OP])].params, row[isa.P :], strict=False))
            if row[isa.OP] == Op.MMAD:
                macs += p["mpad"] * p["k"] * DataType(row[isa.DTYPE]).lanes * p["n1"] * 16
            elif row[isa.OP] == Op.COPY:
                moved = p["length"] * p["count"] * p["count2"] * BLOCK_BYTES
                read += moved * (row[isa.SRC] == Memory.DDR)
                written += moved * (row[isa.DST] == Memory.DDR)
    return macs, read, written


def same_work(program: Program, machine: Machine, counters: Counters, share: int) -> None:
    timing = simulate(program, machine, Level.of_units(share))
    macs, read, written = by_the_records(program)
    assert counters.macs == macs
    assert (timing.ddr_read_bytes, timing.ddr_write_bytes) == (counters.ddr_read_bytes, counters.ddr_write_bytes) == (read, written)
    # nobody multiplies faster than the machine can, nor moves more than the port lets through
    assert macs <= timing.busy_cycles[:, Engine.CUBE].sum() * max(machine.macs_per_cycle.values())
    assert read + written <= timing.cycles * machine.ddr.bytes_per_cycle


@settings(max_examples=30, deadline=None)
@given(programs(INTEGERS, 40), st.integers(1, SHARE_UNIT))
def test_what_is_timed_is_what_is_executed(program: Program, share: int) -> None:
    ddr = np.zeros(program.memory.size_blocks * BLOCK_BYTES, np.uint8)
    same_work(program, INTEGERS, execute(program, INTEGERS, ddr), share)


@settings(max_examples=40, deadline=None)
@given(programs(INTEGERS, 40), st.sampled_from([SHARE_UNIT, SHARE_UNIT // 3]))
def test_events_nest_and_cover_the_busy_time(program: Program, share: int) -> None:
    check_lanes(program, INTEGERS, Level.of_units(share))


# anomalies ------------------------------------------------------------------------------------------------------------

ANOMALIES_LIMIT = 0.01
STEPS = [SHARE_UNIT * n // 16 for n in range(2, 17)]


def product(cycles: int) -> Code:
    """One fractal per cycle."""
    return record(Op.MMAD, Engine.CUBE, 16, cycles, 1, 0, src=Memory.L0A, dst=Memory.L0C, d=0, s=(0, 0))


def load(blocks: int) -> Code:
    return copy(TINY, Memory.DDR, Memory.L1, blocks)


def chain(core: int, work: Sequence[Code]) -> list[Code]:
    """Records of one core, each behind the one before it."""
    rows: list[Code] = []
    for row in work:
        engine = Engine(int(row[isa.ENGINE]))
        before = Engine(int(rows[-1][isa.ENGINE])) if rows else engine
        rows += [flag_set(before, core, engine), flag_wait(engine, core, before)] * (before != engine)
        rows.append(row)
    return rows


def slower_steps(p: Program) -> list[float]:
    """By how much every step to more bandwidth is slower than the one before, where it is."""
    prepared = prepare(p, TINY)
    cycles = [simulate(prepared, TINY, Level.of_units(share)).cycles for share in STEPS]
    return [more / less - 1 for less, more in pairwise(cycles) if more > less]


def test_an_anomaly_on_paper() -> None:
    """A load that comes earlier with more bandwidth takes half of the port from one that others wait for.

    Core 0 multiplies for 1075 cycles whatever the bandwidth, loads 48 blocks from 1079 on and multiplies for 160.  Core 1 loads 10 times
    100 blocks, multiplies for 54 and loads 48.  All of the port: those 1000 blocks by 1004, so core 1's last load moves from 1062 on, 17
    blocks by 1079, the other 31 beside core 0's by 1141, and core 0's last 17 by 1158.  With 15/16: 107 cycles for 100 blocks, 1074 in all,
    core 1's last load moves from 1132 on only, and core 0 is done at 1079 + 52.
    """
    first = [*[product(5)] * 215, load(48), *[product(16)] * 10]
    second = [*[load(100)] * 10, *[product(9)] * 6, load(48)]
    p = program(TINY, chain(0, first), chain(1, second))
    p.verify(TINY)
    assert simulate(p, TINY, NO_CONTENTION).cycles == 1158 + 160
    assert simulate(p, TINY, Level.of_units(SHARE_UNIT * 15 // 16)).cycles == 1131 + 160
    assert len(slower_steps(p)) == 1


def random_chains(seed: int) -> Program:
    """A chain of loads, products and stores on either core: they meet at the port only."""
    rng = np.random.default_rng(seed)
    kinds = (load, product, product, lambda blocks: copy(TINY, Memory.UB, Memory.DDR, blocks, to=64))
    return program(TINY, *(chain(core, [kinds[rng.integers(4)](int(rng.integers(1, 120))) for _ in range(8)]) for core in (0, 1)))


@pytest.mark.parametrize("family", [lambda seed: random_program(TINY, seed, 60), random_chains], ids=["programs", "chains"])
def test_bandwidth_is_rarely_harmful_with_several_dma_queues(
    family: Callable[[int], Program], record_property: Callable[[str, object], None]
) -> None:
    """Scheduling anomalies (Graham) are possible where transfers share the port: their number is recorded with the test's result."""
    found = [slower_steps(p) for p in map(family, range(400)) if prepare(p, TINY).dma_ports > 1]
    steps, slower = len(found) * (len(STEPS) - 1), sum(map(len, found))
    record_property("steps", steps)
    record_property("slower", slower)
    record_property("worst", max((rise for rises in found for rise in rises), default=0.0))
    assert steps > 4000
    assert slower <= ANOMALIES_LIMIT * steps


# values do not depend on times ----------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def compiled(name: str, blocks: int) -> tuple[Case, Program]:
    """All operators in one segment where they fit, else layer by layer."""
    case = make_case(small_model(name), TINY, DataType.float16)
    segment = decode(case.target_graph, Gene(0, len(case.target_graph.operators), blocks))
    plan = plan_of(case.target_graph, [segment]) if isinstance(segment, SegmentPlan) else layer_by_layer(case.target_graph)
    assert not isinstance(plan, Infeasible)
    program = Compiler(case.target_graph).compile(plan)
    assert isinstance(program, Program)
    return case, program


def ddr_of(case: Case) -> np.ndarray:
    ddr = np.full(case.target_graph.memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
    ddr[: len(case.constants)] = case.constants
    for buffer in case.target_graph.memory.of_kind("input"):
        load_input(ddr, buffer, case.feeds[buffer.name], case.target_graph.dtype)
    return ddr


def outputs_in_order(case: Case, program: Program, order: Iterable[Place], seed: int) -> bytes:
    """Bytes of the model's outputs, each record done at once in the order given."""
    memories = Memories(TINY, ddr_of(case), seed)
    codes = [code.tolist() for code in program.streams]
    done = 0
    for core, i in order:
        done += 1
        if codes[core][i][isa.OP] not in FLAGS:
            apply(memories.cores[core], codes[core][i])
    assert done == program.instructions
    return outputs(case, memories.ddr)


def outputs(case: Case, ddr: np.ndarray) -> bytes:
    parts = (
        ddr[b.offset_blocks * BLOCK_BYTES : (b.offset_blocks + b.size_blocks) * BLOCK_BYTES]
        for b in case.target_graph.memory.of_kind("output")
    )
    return b"".join(part.tobytes() for part in parts)


def executed(case: Case, program: Program, seed: int = 0) -> bytes:
    ddr = ddr_of(case)
    execute(program, TINY, ddr, scramble_seed=seed, verify=False)
    return outputs(case, ddr)


def order_of_time(timing: Timing, at_end: bool) -> list[Place]:
    """Instructions by the cycle in which they end (or start): what a machine of these times does one after the other."""
    recorded = timing.recorded
    assert recorded is not None
    times = recorded.end if at_end else recorded.start
    return sorted(((core, i) for core, t in enumerate(times) for i in range(len(t))), key=lambda place: (times[place[0]][place[1]], place))


def other_rates(latency: int, outstanding: int, reads: int, writes: int, issue: int, depth: int) -> Machine:
    machine = with_rates(TINY, reads, writes, latency_cycles=latency, outstanding=outstanding)
    return machine.model_copy(update={"issue_cycles": issue, "queue_depth": depth})


CAPS = st.integers(1, 32)
RATES = st.builds(other_rates, st.integers(0, 60), st.integers(1, 4), CAPS, CAPS, st.integers(0, 6), st.sampled_from([16, 64, 1000]))
NAMES = ("residual_block", "inception_block", "lrn_chain")


@pytest.mark.parametrize("name", NAMES)
def test_values_are_the_same_at_every_level(name: str) -> None:
    case, program = compiled(name, 3)
    expected = executed(case, program)
    assert expected == executed(case, program, seed=1)
    same_work(program, TINY, execute(program, TINY, ddr_of(case)), SHARE_UNIT)
    for level in TINY.contention:
        timing = simulate(program, TINY, TINY.contention[level], record=True)
        for at_end in (True, False):
            assert outputs_in_order(case, program, order_of_time(timing, at_end), 2) == expected, level


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), RATES, st.lists(st.tuples(st.integers(1, 400), st.integers(300, SHARE_UNIT)), max_size=4), st.booleans())
def test_values_are_the_same_with_other_rates(name: str, machine: Machine, steps: list[tuple[int, int]], at_end: bool) -> None:
    case, program = compiled(name, 3)
    cycles = np.cumsum([0, *(gap for gap, _ in steps)]).tolist()
    load = ContentionTrace.of(list(zip(cycles, [SHARE_UNIT, *(share for _, share in steps)], strict=True)))
    timing = simulate_trace(program, machine, load, record=True)
    assert outputs_in_order(case, program, order_of_time(timing, at_end), 3) == executed(case, program)


def interleaving(program: Program, rng: np.random.Generator, hurry: int | None) -> Iterable[Place]:
    """A legal order without times: any queue whose head may go is next, by random priorities; `hurry` puts one engine first."""
    queues: dict[tuple[int, int], list[int]] = {}
    for core, code in enumerate(program.streams):
        for i, engine in enumerate(code[:, isa.ENGINE].tolist()):
            queues.setdefault((core, engine), []).append(i)
    flags: dict[tuple[int, ...], int] = {}
    head = dict.fromkeys(queues, 0)

    def may_go(queue: tuple[int, int]) -> bool:
        row = program.streams[queue[0]][queues[queue][head[queue]]]
        other = (int(row[isa.FLAG_CORE]), int(row[isa.FLAG_ENGINE]))
        return row[isa.OP] != Op.WAIT or flags.get((*other, *queue, int(row[isa.FLAG_ID])), 0) > 0

    while queues:
        ready = [queue for queue in queues if may_go(queue)]
        first = [queue for queue in ready if queue[1] == hurry]
        queue = first[0] if first else ready[int(rng.integers(len(ready)))]
        i = queues[queue][head[queue]]
        row = program.streams[queue[0]][i]
        other = (int(row[isa.FLAG_CORE]), int(row[isa.FLAG_ENGINE]))
        if row[isa.OP] == Op.SET:
            key = (*queue, *other, int(row[isa.FLAG_ID]))
            flags[key] = flags.get(key, 0) + 1
        elif row[isa.OP] == Op.WAIT:
            flags[*other, *queue, int(row[isa.FLAG_ID])] -= 1
        yield queue[0], i
        head[queue] += 1
        if head[queue] == len(queues[queue]):
            del queues[queue]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 1 << 30), st.none() | st.sampled_from([int(e) for e in Engine]))
def test_values_are_the_same_in_any_legal_order(name: str, seed: int, hurry: int | None) -> None:
    case, program = compiled(name, 3)
    assert outputs_in_order(case, program, interleaving(program, np.random.default_rng(seed), hurry), seed % 97) == executed(case, program)


def test_random_orders_show_a_missing_flag() -> None:
    """Else equal values would say little: without one pair of flags some order gives others, for nearly every pair."""
    case, program = compiled("residual_block", 3)
    expected = executed(case, program)
    found = pairs(program.streams[0])
    found = found[:: len(found) // 12]

    def shows(changed: Program) -> bool:
        orders = (interleaving(changed, np.random.default_rng(0), hurry) for hurry in [None, *map(int, Engine)])
        return any(outputs_in_order(case, changed, order, 1) != expected for order in orders)

    assert sum(shows(without(program, list(pair))) for pair in found) >= 0.75 * len(found)


# planted faults of real programs --------------------------------------------------------------------------------------


def moved_writes(program: Program) -> Iterable[Program]:
    """The program with one record writing where the next of its kind writes: two live buffers overlap."""
    code = program.streams[0]
    work = np.flatnonzero(~np.isin(code[:, isa.OP], FLAGS) & (code[:, isa.DST] != Memory.DDR))
    kinds = code[:, [isa.OP, isa.DST]]
    for n, i in enumerate(work):
        for j in work[n + 1 :]:
            if (kinds[i] == kinds[j]).all() and code[i, isa.D] != code[j, isa.D]:
                changed = code.copy()
                changed[i, isa.D] = code[j, isa.D]
                yield Program(program.machine, (changed, *program.streams[1:]), program.memory)
                break


@pytest.mark.parametrize("name", NAMES)
def test_two_live_buffers_in_one_place_are_found(name: str, record_property: Callable[[str, object], None]) -> None:
    """By the sanitizer as a race or a read of what nobody wrote; a clobber within one queue is in order, so it shows in the values."""
    case, program = compiled(name, 3)
    assert sanitize_program(program, TINY) == ()
    expected = executed(case, program)
    planted = list(moved_writes(program))
    planted = planted[:: max(1, len(planted) // 60)]
    unseen = [changed for changed in planted if not sanitize_program(changed, TINY)]
    harmless = [changed for changed in unseen if executed(case, changed) == expected]
    record_property("planted", len(planted))
    record_property("found_by_values_only", len(unseen) - len(harmless))
    assert len(planted) >= 60
    assert len(unseen) <= 0.65 * len(planted)  # what MTE1 keeps in L0 has one write, and no load that would race
    assert not harmless


def test_every_load_over_another_buffer_is_found() -> None:
    """Loads are read by other queues, so the sanitizer sees each of them."""
    _, program = compiled("residual_block", 3)
    loads = (program.streams[0][:, isa.OP] == Op.COPY) & (program.streams[0][:, isa.SRC] == Memory.DDR)
    planted = [p for p in moved_writes(program) if (p.streams[0][loads] != program.streams[0][loads]).any()]
    assert len(planted) >= 5
    for changed in planted:
        kinds = {finding.kind for finding in sanitize_program(changed, TINY)}
        assert kinds & {"race", "unwritten_read", "out_of_bounds"}
