"""Programs one after the other: their times, their timelines and what the runtime makes of them are those of each, in order."""

from __future__ import annotations

import json

import numpy as np
import pytest

from simulator.compiled import Compiled, CompiledPiece
from simulator.ddr import ContentionTrace
from simulator.npu import isa
from simulator.npu.container import Container, OperatorEntry, SegmentEntry, Variant
from simulator.npu.errors import BadInputError
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.program import Program
from simulator.occupancy import ddr_use
from simulator.runtime import Runtime
from simulator.subgraph_sequence import bound_of_all, simulate_all, sum_timings
from simulator.timeline import Timeline, join_timelines, timeline
from simulator.timing import prepare, program_bound, simulate, simulate_trace
from simulator.trace import trace_run
from simulator.trace_json import write_json
from tests.messages import naming
from tests.programs import memory_map, random_program

EDGE = load_machine("edge")
TWO = load_machine("ascend310")
HALF = SHARE_UNIT // 2
COUNTS = [(3, 2), (1, 1), (2, 5)]  # segments and operators that each program numbers


def programs(machine: Machine) -> list[Program]:
    return [random_program(machine, seed, 120) for seed in (1, 2, 3)]


@pytest.fixture(scope="module", params=[EDGE, TWO], ids=lambda machine: machine.name)
def runs(request: pytest.FixtureRequest) -> list[Timeline]:
    return [timeline(p, request.param, Level.of_units(HALF)) for p in programs(request.param)]


def test_times_add_up() -> None:
    prepared = [prepare(p, EDGE) for p in programs(EDGE)]
    each = [simulate(p, EDGE, Level.of_units(HALF)) for p in prepared]
    whole = simulate_all(prepared, EDGE, Level.of_units(HALF))
    for name in ("cycles", "ddr_read_bytes", "ddr_write_bytes", "bus_units", "load_store_cycles", "compute_cycles", "instructions"):
        assert getattr(whole, name) == sum(getattr(t, name) for t in each)
    np.testing.assert_array_equal(whole.busy_cycles, sum(t.busy_cycles for t in each))
    assert (
        bound_of_all(prepared, EDGE, Level.of_units(HALF))
        == sum(program_bound(p, EDGE, Level.of_units(HALF)) for p in prepared)
        <= whole.cycles
    )
    assert sum_timings(each[:1]) is each[0]


def test_timeline_has_instructions_at_their_programs_times(runs: list[Timeline]) -> None:
    t = join_timelines(runs, COUNTS)
    assert t.cycles == sum(run.cycles for run in runs)
    begin, segments, operators, seen = 0, 0, 0, np.zeros(len(t.code), bool)
    for run, part, (more_segments, more_operators) in zip(runs, t.parts, COUNTS, strict=True):
        rows = part.rows
        assert not seen[rows].any()
        seen[rows] = True
        np.testing.assert_array_equal(t.start[rows], run.start + begin)
        np.testing.assert_array_equal(t.end[rows], run.end + begin)
        np.testing.assert_array_equal(t.core[rows], run.core)
        np.testing.assert_array_equal(t.segment[rows], run.segment + segments)
        np.testing.assert_array_equal(t.operator[rows], run.operator + operators)
        rest = [word for word in range(isa.WORDS) if word != isa.TAG]
        np.testing.assert_array_equal(t.code[rows][:, rest], run.code[:, rest])
        begin, segments, operators = begin + run.cycles, segments + more_segments, operators + more_operators
    assert seen.all()
    for core in range(t.cores):  # rows of a core stand together, in the order of the programs
        rows = slice(int(t.stream_start[core]), int(t.stream_start[core + 1]))
        assert (t.core[rows] == core).all()
    assert join_timelines(runs[:1], COUNTS[:1]) is runs[0]


def test_stalls_are_those_of_every_program(runs: list[Timeline]) -> None:
    t = join_timelines(runs, COUNTS)
    mine, begin, found = t.stalls, 0, 0
    for run, part in zip(runs, t.parts, strict=True):
        theirs = run.stalls
        at = (mine.start >= begin) & (mine.end <= begin + run.cycles)
        order, other = (np.lexsort((s.row, s.start, s.engine, s.core)) for s in (theirs, _some(mine, at)))
        np.testing.assert_array_equal(part.rows[theirs.row][order], mine.row[at][other])
        np.testing.assert_array_equal(theirs.start[order] + begin, mine.start[at][other])
        np.testing.assert_array_equal(theirs.cause[order], mine.cause[at][other])
        sources = np.where(theirs.source_row >= 0, part.rows[theirs.source_row], -1)
        np.testing.assert_array_equal(sources[order], mine.source_row[at][other])
        begin, found = begin + run.cycles, found + int(at.sum())
    assert found == len(mine)


def _some(s, mask):  # type: ignore[no-untyped-def]
    return type(s)(*(getattr(s, name)[mask] for name in s.__dataclass_fields__))


def test_trace_of_a_sequence_is_read_as_usual(runs: list[Timeline]) -> None:
    t = join_timelines(runs, COUNTS)
    names = [f"op{i}" for i in range(8)]
    events = json.loads(b"".join(write_json(trace_run(t, names))))["traceEvents"]
    work = [e for e in events if e["ph"] == "X" and e["cat"] not in ("stall", "SCALAR", "chain")]
    assert len(work) == int((t.work & (t.engine < 6)).sum())
    assert max(e["args"]["start_cycle"] + e["args"]["cycles"] for e in work) <= t.cycles
    assert float(ddr_use(t).read.value.max()) > 0


def test_later_programs_of_inference_meet_their_own_load() -> None:
    prepared = tuple(prepare(p, EDGE) for p in programs(EDGE))
    runtime = Runtime({"only": prepared}, EDGE)
    first = simulate(prepared[0], EDGE, NO_CONTENTION).cycles
    load = ContentionTrace.of([(0, SHARE_UNIT), (first + 7, SHARE_UNIT // 4)])
    rest, now = [], first
    for p in prepared[1:]:
        rest.append(simulate_trace(p, EDGE, load.after(now)).cycles)
        now += rest[-1]
    assert runtime.inference(0, load, 0).cycles == first + sum(rest)
    assert runtime.steady(0, HALF).cycles == simulate_all(prepared, EDGE, EDGE.contention["slight"]).cycles


def container(seed: int, machine: Machine = EDGE, model: str = "0" * 32) -> Container:
    program = random_program(machine, seed, 40)
    streams = program.streams
    cycles = {"none": seed, "severe": 10 * seed}
    variants = tuple(Variant(level, streams, "", cycles, (SegmentEntry(1, 1),)) for level in ("none", "severe"))
    return Container(model, machine, memory_map(), variants, b"", (OperatorEntry(f"op{seed}"),))


def test_a_compiled_model_sums_its_pieces() -> None:
    compiled = Compiled((CompiledPiece("Partition0", container(1)), CompiledPiece("Partition1", container(2))))
    assert compiled.cycles("severe") == {"none": 3, "severe": 30}
    assert [operator.name for operator in compiled.operators] == ["op1", "op2"]
    assert compiled.segments("none") == (SegmentEntry(1, 1),) * 2
    assert compiled.same_as("severe") == "none"
    assert compiled.timeline("none").cycles == simulate_all(compiled.prepared("none"), EDGE, NO_CONTENTION).cycles
    with pytest.raises(BadInputError, match=naming("level 'slight'", "none, severe")):
        compiled.variants("slight")


def test_pieces_of_different_models_are_refused() -> None:
    one = CompiledPiece("Partition0", container(1))
    for other, what in ((container(2, model="1" * 32), "model"), (container(2, load_machine("tiny")), "machine")):
        with pytest.raises(BadInputError, match=naming("Partition1", what, "Partition0")):
            Compiled((one, CompiledPiece("Partition1", other)))
