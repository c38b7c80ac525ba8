"""Flags and issue order: enough of them, none in the wrong order, and no deadlock however short the queues are."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.schedule.instruction_numbers import EDGES
from compiler.schedule.synchronize import Synchroniser
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from compiler.space.initial import layer_by_layer
from simulator.npu import isa
from simulator.npu.asm import parse
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.machine_parts import Dma
from simulator.npu.parts import DataType
from simulator.npu.program import Code, Program
from simulator.sanitizer import sanitize_program
from simulator.timing import simulate_levels
from tests.compiled import Case, check_program, make_case
from tests.models import small_model

TINY = load_machine("tiny")
NEEDED = 0.98  # of all pairs; here it is every one
FLAGS = (int(Op.SET), int(Op.WAIT))


def machine(**changes: int) -> Machine:
    """`tiny` with another queue depth or limit of its flags' counts."""
    raw = TINY.model_dump()
    raw["flags"]["count_limit"] = changes.get("count_limit", TINY.flags.count_limit)
    raw["queue_depth"] = changes.get("queue_depth", TINY.queue_depth)
    return Machine.model_validate(raw)


def case_and_program(m: Machine, name: str = "residual_block", blocks: int = 3) -> tuple[Case, Program]:
    """All operators in one segment and a few blocks: many dependences."""
    case = make_case(small_model(name), m, DataType.float16)
    segment = decode(case.target_graph, Gene(0, len(case.target_graph.operators), blocks))
    plan = plan_of(case.target_graph, [segment]) if isinstance(segment, SegmentPlan) else layer_by_layer(case.target_graph)
    assert not isinstance(plan, Infeasible)
    program = Compiler(case.target_graph).compile(plan)
    assert isinstance(program, Program)
    return case, program


@lru_cache(maxsize=1)
def tiny_case() -> tuple[Case, Program]:
    return case_and_program(TINY)


def pairs(code: Code) -> list[tuple[int, int]]:
    """(row of the SET, row of the WAIT) of every use of a flag: the i-th of one belongs to the i-th of the other."""
    sets: dict[tuple[int, ...], list[int]] = {}
    waits: dict[tuple[int, ...], list[int]] = {}
    for i in np.flatnonzero(np.isin(code[:, isa.OP], FLAGS)).tolist():
        here, there, flag = int(code[i, isa.ENGINE]), int(code[i, isa.FLAG_ENGINE]), int(code[i, isa.FLAG_ID])
        if code[i, isa.OP] == Op.SET:
            sets.setdefault((here, there, flag), []).append(i)
        else:
            waits.setdefault((there, here, flag), []).append(i)
    assert set(sets) == set(waits)
    return [pair for key in sets for pair in zip(sets[key], waits[key], strict=True)]


def without(program: Program, rows: list[int]) -> Program:
    code = np.delete(program.streams[0], rows, axis=0)
    return Program(program.machine, (code, *program.streams[1:]), program.memory)


def test_every_set_stands_before_its_wait() -> None:
    _, program = tiny_case()
    found = pairs(program.streams[0])
    assert len(found) > 100
    assert all(s < w for s, w in found)


def test_removing_a_pair_is_a_race() -> None:
    """Waits follow from granules of memory, so a few order more than they must; nearly every single one is needed."""
    _, program = tiny_case()
    found = pairs(program.streams[0])
    needed = [bool(sanitize_program(without(program, list(pair)), TINY)) for pair in found]
    assert sum(needed) >= NEEDED * len(found), f"{sum(needed)} of {len(found)}"


def test_removing_flags_between_two_engines_is_a_race() -> None:
    """Where no flag is there for the count of others alone."""
    _, program = case_and_program(machine(count_limit=255))
    code = program.streams[0]
    by_engines: dict[tuple[int, int], list[int]] = {}
    for s, w in pairs(code):
        by_engines.setdefault((int(code[s, isa.ENGINE]), int(code[w, isa.ENGINE])), []).extend((s, w))
    assert len(by_engines) >= 8
    for engines, rows in by_engines.items():
        findings = sanitize_program(without(program, rows), machine(count_limit=255))
        assert any(f.kind in ("race", "unwritten_read") for f in findings), engines


def test_flags_and_order_are_all_that_is_added() -> None:
    """The queues hold the sequential stream's records in its order."""
    case, _ = tiny_case()
    compiler = Compiler(case.target_graph)
    plan = layer_by_layer(case.target_graph)
    assert not isinstance(plan, Infeasible)
    parts = compiler.parts(plan)
    assert isinstance(parts, list)
    sequential = np.concatenate([part.lowered.code for part in parts])
    before = sequential.copy()
    synchroniser = Synchroniser(case.target_graph)
    schedule = synchroniser.schedule([synchroniser.footprints.of(sequential)], [0])
    (stream,) = synchroniser.write(schedule, [sequential], [0])
    assert (sequential == before).all()
    work = stream[~np.isin(stream[:, isa.OP], FLAGS)]
    for engine in range(7):
        assert (work[work[:, isa.ENGINE] == engine] == sequential[sequential[:, isa.ENGINE] == engine]).all()


@pytest.mark.parametrize("name", ["residual_block", "inception_block", "lrn_chain"])
@pytest.mark.parametrize("depth", [1, 2])
def test_no_deadlock_with_short_queues(name: str, depth: int) -> None:
    m = machine(queue_depth=depth)
    case, program = case_and_program(m, name)
    check_program(case, program)  # its sanitizer would report a deadlock
    cycles = simulate_levels(program, m)
    assert cycles["severe"].cycles >= cycles["none"].cycles


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["residual_block", "dense_block"])
def test_counts_stay_within_the_limit(name: str, limit: int) -> None:
    m = machine(count_limit=limit)
    case, program = case_and_program(m, name)
    check_program(case, program)  # its sanitizer would report a count that can exceed the limit


def test_a_lower_limit_costs_order_not_work() -> None:
    _, wide = case_and_program(machine(count_limit=255))
    _, narrow = case_and_program(machine(count_limit=1))
    assert narrow.digest != wide.digest
    work = [program.streams[0][~np.isin(program.streams[0][:, isa.OP], FLAGS)] for program in (wide, narrow)]
    assert len(work[0]) == len(work[1])
    assert simulate_levels(narrow, machine(count_limit=1))["none"].cycles >= simulate_levels(wide, machine(count_limit=255))["none"].cycles


LOAD = "MTE2 COPY UB[{}] DDR[0] length=4 count=1 count2=1"


@pytest.mark.parametrize(
    ("ports", "starts", "edges"),
    [
        (1, (0, 0), []),
        (2, (0, 0), [(0, 1)]),  # nobody has read the first
        (2, (0, 4), []),  # side by side in one granule of other machines
        (2, (0, 3), [(0, 1)]),
        (2, (0, 8, 8, 0, 16), [(1, 2)]),  # the flag for the second tells of the first, too
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_loads_wait_for_their_queue_where_ports_overlap(
    ports: int, starts: tuple[int, ...], edges: list[tuple[int, int]], parts: int
) -> None:
    """parts: all in one, or each but the first in one of its own."""
    m = TINY.model_copy(update={"dma": Dma(load_ports=ports)})
    synchroniser = Synchroniser(make_case(small_model("residual_block"), m, DataType.float16).target_graph)
    code = parse("\n".join(LOAD.format(start) for start in starts))
    pieces = [code] if parts == 1 else [code[:1], code[1:]]
    s = synchroniser.schedule([synchroniser.footprints.of(piece) for piece in pieces], [0] * parts)
    firsts, ends = s.number[:-1].T.tolist()
    names = [first + j for first, piece in zip(firsts, pieces, strict=True) for j in range(len(piece))]
    numbers = [k for first, end in zip(firsts, ends, strict=True) for k in range(EDGES * first, end)][: len(edges) + 1]
    assert [(names.index(s.edge_from[k]), names.index(s.edge_to[k])) for k in numbers] == edges
