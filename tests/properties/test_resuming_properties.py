"""Programs timed from where they differ from the one before take what they take from their beginning, to the last cycle."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler, ScheduledShare
from compiler.plan.plan import Infeasible
from compiler.schedule.incremental_prepare import EVERY
from compiler.space.decode import decode_all
from compiler.space.gene import Genome
from compiler.target.target_graph import TargetGraph
from scripts.bench_evaluate import mutations
from simulator import incremental_timing
from simulator.incremental_timing import Entries, IncrementalRuns
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from simulator.timing import Prepared, prepare, simulate, simulate_levels
from simulator.timing_converge import CommonSuffix, find_common_suffix
from simulator.timing_kernel import run_event_loop
from simulator.timing_snapshot import FROM
from simulator.timing_state import COLUMNS, ENGINES, HEAD, KIND_BITS, KIND_MASK, SET, SET_REMOTE, STOP, WAIT, Ints
from tests.compiler.schedule.test_equal_shares import plain_compiler
from tests.everywhere import MACHINES
from tests.models import light_model, random_model
from tests.programs import programs
from tests.properties.test_timing_properties import MACHINES as TIMED
from tuner.measure.incremental_timer import Timer, Timers

ROOM = 1 << 12  # entries of a queue
WHERE = MACHINES | {name: load_machine(name) for name in ("edge-shared", "ascend310-l2", "ascend310p")}
L2 = {"bytes": 1 << 16, "line_bytes": 512, "fill_bytes_per_cycle": 16}
BEHIND_L2 = {
    f"l2-{cores}-cores": Machine.model_validate(load_machine(f"edge:cores={cores}").model_dump() | {"l2": L2}) for cores in (1, 2, 4)
}
GRANTED = {"none": 1.0, "slight": {"share": 0.5, "l2_bytes": 1 << 15}, "severe": {"share": 0.25, "l2_bytes": 1 << 15}}
BEHIND_L2["l2-of-levels"] = Machine.model_validate(load_machine("edge").model_dump() | {"l2": L2, "contention": GRANTED})


class Laid(NamedTuple):
    """A program in arrays with room, up to where it is what lay there before, and with what both end."""

    entries: Entries
    words: Ints
    rows: Ints
    alike: CommonSuffix


def joined(parts: tuple[Program, ...]) -> Program:
    """Programs one after the other in every stream, without a wait between them."""
    streams = [np.concatenate(codes) for codes in zip(*(part.streams for part in parts), strict=True)]
    return Program(parts[0].machine, tuple(streams), parts[0].memory)


def numbered(p: Prepared, parts: tuple[Program, ...]) -> Ints:
    """Entries whose flag slots follow the order of parts: what two programs begin with is the same."""
    word, rows = p.word.copy(), p.stream_rows()
    kind = word & KIND_MASK
    lengths = np.array([[len(code) for code in part.streams] for part in parts])
    core = np.searchsorted(p.stream_start, rows, side="right") - 1
    part_of = (np.cumsum(lengths, 0)[:, core] <= rows - p.stream_start[core]).sum(0)
    sets = np.flatnonzero((kind == SET) | (kind == SET_REMOTE))
    sets = sets[np.lexsort((rows[sets], part_of[sets]))]
    slot = np.empty(p.flag_slots, np.int64)
    slot[word[sets] >> KIND_BITS] = np.arange(len(sets))
    flags = np.flatnonzero((kind == WAIT) | (kind == SET) | (kind == SET_REMOTE))
    word[flags] = slot[word[flags] >> KIND_BITS] << KIND_BITS | kind[flags]
    return word


class Layout:
    """Programs in the same arrays, one after the other."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.word, self.engine = np.zeros(cores * ENGINES * ROOM, np.int64), np.zeros(cores * ROOM, np.uint8)
        self.words: Ints = np.arange(cores * ENGINES, dtype=np.int64) * ROOM
        self.rows: Ints = np.arange(cores, dtype=np.int64) * ROOM
        self.queue_stop, self.stream_stop = self.words.copy(), self.rows.copy()
        self.slots = 0

    def lay(self, machine: Machine, parts: tuple[Program, ...]) -> Laid:
        p = prepare(joined(parts), machine)
        word = numbered(p, parts)
        bounds = (self.words, self.queue_stop), (self.rows, self.stream_stop)
        queues_then, streams_then = map(np.column_stack, bounds)
        then = self.word.copy(), queues_then, self.engine.copy(), streams_then
        new = [word[a:b] for a, b in zip(p.queue_start[:-1], p.queue_start[1:], strict=True)]
        same = [_replaced(self.word, int(at), int(stop), of) for at, stop, of in zip(self.words, self.queue_stop, new, strict=True)]
        streams = np.split(p.engine, p.stream_start[1:-1])
        ended = [stop - at == len(of) for at, stop, of in zip(self.rows, self.stream_stop, streams, strict=True)]
        rows = [_replaced(self.engine, int(at), int(stop), of) for at, stop, of in zip(self.rows, self.stream_stop, streams, strict=True)]
        rows = [row + (end and row == at + len(of)) for row, end, at, of in zip(rows, ended, self.rows, streams, strict=True)]
        self.queue_stop, self.stream_stop = self.words + np.array(list(map(len, new))), self.rows + np.array(list(map(len, streams)))
        queues, rows_of = np.column_stack((self.words, self.queue_stop)), np.column_stack((self.rows, self.stream_stop))
        begin = np.zeros(p.flag_slots, np.int32), self.words[None], np.zeros(1, np.int64), 1
        entries = Entries(self.word, queues, self.engine, rows_of, p.flag_slots, int(p.transfers.sum()), *begin)
        end = find_common_suffix(
            self.word, queues, self.engine, rows_of, *then, p.flag_slots - self.slots, *np.zeros((2, len(queues)), np.int64)
        )
        self.slots = p.flag_slots
        return Laid(entries, np.array(same), np.array(rows), end)


def _replaced(array: NDArray[Any], at: int, stop: int, new: NDArray[Any]) -> int:
    """Up to where it is what it was."""
    shared = min(len(new), stop - at)
    differing = np.flatnonzero(array[at : at + shared] != new[:shared])
    array[at : at + len(new)] = new
    return at + (int(differing[0]) if len(differing) else shared)


@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    TIMED,
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=6),
    st.sampled_from([1 << 16, 30_000, 9_001]),
)
def test_any_programs_that_begin_and_end_alike(data: st.DataObject, machine: Machine, kept: list[tuple[int, int]], share: int) -> None:
    """kept: with how many parts of the program before each one begins, and with how many it ends."""
    layout, level = Layout(machine.cores), Level.of_units(share, 3)
    runs, parts = IncrementalRuns(machine, level, machine.cores), tuple[Program, ...]()
    for head, tail in kept:
        parts = (*parts[:head], *(data.draw(programs(machine, 12)) for _ in range(2)), *parts[len(parts) - tail :])
        laid = layout.lay(machine, parts)
        runs.set_common_parts(laid.words, laid.rows, laid.alike)
        found, wanted = runs.run(laid.entries), simulate(joined(parts), machine, level)
        assert found.cycles == wanted.cycles
        assert found.load_store_cycles == wanted.load_store_cycles
        fixed = prepare(joined(parts), machine).engine_cycles
        assert (found.moved + fixed).tolist() == wanted.busy_cycles.tolist()


def test_runs_do_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The properties here would hold as well of runs that always begin at the beginning, or always go on to the end."""
    machine = load_machine("edge")
    target_graph = make_unit(lower(light_model("shufflenet")), machine, DataType.float16)
    timers, compiler, begun, met, taken = (
        Timers(Compiler(target_graph), machine),
        Compiler(target_graph),
        list[int](),
        list[bool](),
        list[int](),
    )

    def watched(*arrays: Any) -> int:
        begun.append(int(arrays[-1][FROM]))
        cycles, queues = run_event_loop(*arrays), arrays[2].reshape(-1, COLUMNS)
        met.append(bool((queues[:, HEAD] != queues[:, STOP]).any()))
        return int(cycles)

    monkeypatch.setattr(incremental_timing, "run_event_loop", watched)
    for genome in islice(mutations(target_graph, 3), 12):
        parts = parts_of(compiler, target_graph, genome)
        timers.times(parts, ("none",))
        taken.append(compiler.schedule(parts).taken)
    timer = timers.choose(parts)
    assert timer.scheduled(parts).reused_count > 0
    assert begun[0] == -1
    assert max(begun) >= 0
    assert any(met)
    assert any(taken)


def parts_of(compiler: Compiler, target_graph: TargetGraph, genome: Genome) -> list[ScheduledShare]:
    plan = decode_all(target_graph, genome)
    assert not isinstance(plan, Infeasible)
    parts = compiler.parts(plan)
    return [] if isinstance(parts, Infeasible) else parts


@pytest.mark.parametrize(
    ("seed", "where"),
    [*enumerate(WHERE), *((seed, "edge-4-cores") for seed in range(20, 24)), *((seed, where) for where in BEHIND_L2 for seed in (30, 31))],
)
def test_mutated_programs(seed: int, where: str) -> None:
    """Two searches take turns, so that a program's parent is not always the one before; some levels are left out now and then."""
    machine = (WHERE | BEHIND_L2)[where]
    target_graph = make_unit(lower(random_model(seed)), machine, DataType(seed % 2))
    compiler, plain, rng = Compiler(target_graph), plain_compiler(target_graph), np.random.default_rng(seed)
    timers, levels = Timers(compiler, machine), tuple(machine.contention)
    walks = [mutations(target_graph, seed), mutations(target_graph, seed + 1000)]
    for i in range(12):
        genome = next(walks[int(rng.integers(2))], None)
        parts = [] if genome is None else parts_of(compiler, target_graph, genome)
        if not parts:
            continue
        assert genome is not None
        asked = levels if i % 3 else levels[:1]
        found = timers.times(parts, asked)
        plain.synchroniser.forget_borders()
        program = plain.link(parts_of(plain, target_graph, genome))
        assert compiler.link(parts).digest == program.digest
        for level, wanted in simulate_levels(program, machine, asked).items():
            assert found[level].cycles == wanted.cycles, (i, level)
            assert found[level].load_store_cycles == wanted.load_store_cycles
            assert found[level].busy_cycles.tolist() == wanted.busy_cycles.sum(0).tolist()


def test_programs_with_flags_from_far_in_front() -> None:
    """Thousands of instructions: what a run goes on from is behind some of those that set flags for others ahead of it."""
    machine = load_machine("edge")
    target_graph = make_unit(lower(light_model("squeezenet")), machine, DataType.float16)
    compiler = Compiler(target_graph, records=False)
    timers, plain = Timers(compiler, machine), Timer(compiler, machine, resuming=False)
    for genome in islice(mutations(target_graph, 7), 10):
        if parts := parts_of(compiler, target_graph, genome):
            assert sum([part.lowered.records for part in parts]) > 4 * EVERY
            found, wanted = timers.times(parts, ("none",))["none"], plain.times(parts, ("none",))["none"]
            assert found.cycles == wanted.cycles
            assert found.load_store_cycles == wanted.load_store_cycles
            assert found.busy_cycles.tolist() == wanted.busy_cycles.tolist()
