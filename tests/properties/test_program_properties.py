"""A program's values and its times have the same work, and neither changes the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.derive.gene import Gene, layer_by_layer, plan_of, realise
from compiler.derive.plan import Infeasible, SegmentPlan
from compiler.pipeline import Compiler
from simulator.ddr import ContentionTrace
from simulator.functional import Counters, Memories, apply, execute
from simulator.host_layout import load_input
from simulator.npu import isa
from simulator.npu.isa import OPS, Op
from simulator.npu.machine import BLOCK_BYTES, SHARE_UNIT, DataType, Engine, Machine, Memory, load_machine
from simulator.npu.program import Program
from simulator.sanitizer import check
from simulator.timing import Timing, prepare, simulate, simulate_trace
from tests.compiled import Case, make_case
from tests.models import small_model
from tests.programs import programs, random_program
from tests.simulator.test_trace import check_lanes

TINY = load_machine("tiny")
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
                lanes = 8 if row[isa.DTYPE] == DataType.float32 else 16
                macs += p["mpad"] * p["k"] * lanes * p["n1"] * 16
            elif row[isa.OP] == Op.COPY:
                moved = p["length"] * p["count"] * p["count2"] * BLOCK_BYTES
                read += moved * (row[isa.SRC] == Memory.DDR)
                written += moved * (row[isa.DST] == Memory.DDR)
    return macs, read, written


def same_work(program: Program, machine: Machine, counters: Counters, share: int) -> None:
    timing = simulate(program, machine, share)
    macs, read, written = by_the_records(program)
    assert counters.macs == macs
    assert (timing.ddr_read_bytes, timing.ddr_write_bytes) == (counters.ddr_read_bytes, counters.ddr_write_bytes) == (read, written)
    # nobody multiplies faster than the machine can, nor moves more than the port lets through
    assert macs <= timing.busy_cycles[:, Engine.CUBE].sum() * max(machine.macs_per_cycle.values())
    assert read + written <= timing.cycles * machine.ddr.bytes_per_cycle


@settings(max_examples=60, deadline=None)
@given(programs(TINY, 40), st.integers(1, SHARE_UNIT))
def test_what_is_timed_is_what_is_executed(program: Program, share: int) -> None:
    ddr = np.zeros(program.memory.size_blocks * BLOCK_BYTES, np.uint8)
    same_work(program, TINY, execute(program, TINY, ddr), share)


@settings(max_examples=40, deadline=None)
@given(programs(TINY, 40), st.sampled_from([SHARE_UNIT, SHARE_UNIT // 3]))
def test_events_of_any_program_nest_and_cover_the_busy_time(program: Program, share: int) -> None:
    check_lanes(program, TINY, share)


# anomalies ------------------------------------------------------------------------------------------------------------

ANOMALIES_LIMIT = 0.01


def test_more_bandwidth_is_rarely_slower_with_several_dma_queues(record_property: Callable[[str, object], None]) -> None:
    """Scheduling anomalies (Graham) are possible where transfers share the port: their number is recorded with the test's result."""
    shares = [SHARE_UNIT * n // 16 for n in range(2, 17)]
    pairs = anomalies = 0
    worst = 0.0
    for seed in range(250):
        p = prepare(random_program(TINY, seed, 60), TINY)
        if p.dma_queues < 2:
            continue
        cycles = [simulate(p, TINY, share).cycles for share in shares]
        rises = [more / less - 1 for less, more in zip(cycles, cycles[1:], strict=False) if more > less]
        pairs += len(shares) - 1
        anomalies += len(rises)
        worst = max([worst, *rises])
    record_property("bandwidth_pairs", pairs)
    record_property("anomalies", anomalies)
    record_property("worst_anomaly", worst)
    print(f"{anomalies} of {pairs} steps of more bandwidth are slower, the worst by {100 * worst:.2f}%")
    assert pairs > 3000
    assert anomalies <= ANOMALIES_LIMIT * pairs


# values do not depend on times ----------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def compiled(name: str, blocks: int) -> tuple[Case, Program]:
    """All operators in one segment where they fit, else layer by layer."""
    case = make_case(small_model(name), TINY, DataType.float16)
    segment = realise(case.unit, Gene(0, len(case.unit.kernels), blocks))
    plan = plan_of(case.unit, [segment]) if isinstance(segment, SegmentPlan) else layer_by_layer(case.unit)
    assert not isinstance(plan, Infeasible)
    program = Compiler(case.unit).compile(plan)
    assert isinstance(program, Program)
    return case, program


def ddr_of(case: Case) -> np.ndarray:
    ddr = np.full(case.unit.memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
    ddr[: len(case.unit.constants)] = case.unit.constants
    for buffer in case.unit.memory.of_kind("input"):
        load_input(ddr, buffer, case.feeds[buffer.name], case.unit.dtype)
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
    parts = (ddr[b.offset_blocks * BLOCK_BYTES : (b.offset_blocks + b.size_blocks) * BLOCK_BYTES] for b in case.unit.memory.of_kind("output"))
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
    ddr = {"latency_cycles": latency, "outstanding": outstanding, "read_cap_bytes_per_cycle": reads, "write_cap_bytes_per_cycle": writes}
    return TINY.model_copy(update={"ddr": TINY.ddr.model_copy(update=ddr), "issue_cycles": issue, "queue_depth": depth})


RATES = st.builds(
    other_rates, st.integers(0, 60), st.integers(1, 4), st.integers(1, 32), st.integers(1, 32), st.integers(0, 6), st.sampled_from([16, 64, 1000])
)
NAMES = ("residual_block", "inception_block", "lrn_chain")


@pytest.mark.parametrize("name", NAMES)
def test_values_are_the_same_at_every_level(name: str) -> None:
    case, program = compiled(name, 3)
    expected = executed(case, program)
    assert expected == executed(case, program, seed=1)
    same_work(program, TINY, execute(program, TINY, ddr_of(case)), SHARE_UNIT)
    for level in TINY.contention:
        timing = simulate(program, TINY, TINY.share_units(level), record=True)
        for at_end in (True, False):
            assert outputs_in_order(case, program, order_of_time(timing, at_end), 2) == expected, level


@settings(max_examples=12, deadline=None)
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


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 1 << 30), st.none() | st.sampled_from([int(e) for e in Engine]))
def test_values_are_the_same_in_any_legal_order(name: str, seed: int, hurry: int | None) -> None:
    case, program = compiled(name, 3)
    assert outputs_in_order(case, program, interleaving(program, np.random.default_rng(seed), hurry), seed % 97) == executed(case, program)


# planted faults of real programs --------------------------------------------------------------------------------------


def moved_writes(program: Program, memory: Memory) -> Iterable[tuple[int, Program]]:
    """The program with one load into `memory` put where the load after the next one goes: two live buffers overlap."""
    code = program.streams[0]
    rows = np.flatnonzero((code[:, isa.OP] == Op.COPY) & (code[:, isa.SRC] == Memory.DDR) & (code[:, isa.DST] == memory))
    for i, j in zip(rows, rows[1:], strict=False):
        if code[i, isa.D] != code[j, isa.D] and code[i, isa.C_LENGTH] == code[j, isa.C_LENGTH]:
            changed = code.copy()
            changed[i, isa.D] = code[j, isa.D]
            yield int(i), Program(program.machine, (changed, *program.streams[1:]), program.memory)


@pytest.mark.parametrize("name", NAMES)
def test_two_live_buffers_in_one_place_are_found(name: str) -> None:
    """By the sanitizer: as a race, or as a read of what nobody wrote."""
    case, program = compiled(name, 3)
    assert check(program, TINY) == ()
    planted = list(moved_writes(program, Memory.L1))[:40]
    found = [check(changed, TINY) for _, changed in planted]
    values = [executed(case, changed) != executed(case, program) for _, changed in planted]
    print(name, len(planted), sum(map(bool, found)), sum(values), sum(bool(f) or v for f, v in zip(found, values)))
