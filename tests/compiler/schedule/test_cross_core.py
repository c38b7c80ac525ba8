"""Programs of several cores: right values, no race, no deadlock, counts within their limit, and flags that are needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode_all
from compiler.space.gene import Gene, Genome
from compiler.space.initial import single_operators
from compiler.space.structural_hash import Structures
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine
from simulator.npu.program import Program
from simulator.sanitizer import sanitize_program
from simulator.timing import simulate_levels
from tests.compiled import Case, check_program, make_case
from tests.models import Builder, small_model

MTE2, MTE3 = int(Engine.MTE2), int(Engine.MTE3)


def machine(cores: int, count_limit: int = 7, queue_depth: int = 16) -> Machine:
    """`tiny` with other cores, limits of its flags' counts, or queues."""
    raw = load_machine("tiny").model_dump()
    raw["cores"], raw["queue_depth"], raw["flags"]["count_limit"] = cores, queue_depth, count_limit
    return Machine.model_validate(raw)


def split(case: Case, cores: Sequence[int], blocks: int) -> Genome:
    """Every operator alone, in at least `blocks` blocks, over `cores` in turn: each on one more than the one before."""
    singles = single_operators(case.target_graph)
    assert not isinstance(singles, Infeasible)
    genes = []
    for k, gene in enumerate(singles):
        width = 1 + k % len(cores)
        genes.append(gene._replace(blocks=max(gene.blocks, blocks), cores=tuple(np.roll(cores, k)[:width].tolist())))
    return tuple(genes)


def compiled(case: Case, genome: Genome) -> Program:
    plan = decode_all(case.target_graph, genome)
    assert not isinstance(plan, Infeasible), plan
    program = Compiler(case.target_graph).compile(plan)
    assert isinstance(program, Program)
    return program


def case_of(name: str, m: Machine) -> Case:
    return make_case(small_model(name), m, DataType.float16)


def crossing(program: Program) -> dict[tuple[int, ...], tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
    """Flag between cores (core, engine, core, engine) -> its SETs and its WAITs as (core, row)."""
    found: dict[tuple[int, ...], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for core, code in enumerate(program.streams):
        for row in np.flatnonzero(np.isin(code[:, isa.OP], (int(Op.SET), int(Op.WAIT)))).tolist():
            here = (core, int(code[row, isa.ENGINE]))
            there = (int(code[row, isa.FLAG_CORE]), int(code[row, isa.FLAG_ENGINE]))
            if here[0] == there[0]:
                continue
            setting = code[row, isa.OP] == Op.SET
            key = (*here, *there) if setting else (*there, *here)
            found.setdefault(key, ([], []))[0 if setting else 1].append((core, row))
    return found


@pytest.mark.parametrize("name", ["residual_block", "inception_block", "dense_block"])
@pytest.mark.parametrize(("cores", "depth", "limit"), [(2, 16, 7), (3, 1, 7), (4, 2, 1), (8, 16, 2)])
def test_programs_of_several_cores_are_right(name: str, cores: int, depth: int, limit: int) -> None:
    case = case_of(name, machine(cores, limit, depth))
    program = compiled(case, split(case, range(cores), cores))
    named = {core for gene in split(case, range(cores), cores) for core in gene.cores}
    assert {core for core, stream in enumerate(program.streams) if len(stream)} <= named
    assert sum(len(stream) > 0 for stream in program.streams) > 1
    check_program(case, program)


def test_loads_wait_for_stores_with_few_needless_flags() -> None:
    """Waits follow from granules of DDR, so one or the other orders more than it must."""
    m = machine(2)
    needed = []
    for name in ("residual_block", "inception_block", "dense_block", "lrn_chain"):
        case = case_of(name, m)
        program = compiled(case, split(case, range(2), 4))
        forward = {key: value for key, value in crossing(program).items() if key[1] == MTE3}
        assert {(key[1], key[3]) for key in forward} == {(MTE3, MTE2)}
        for sets, waits in forward.values():
            for pair in zip(sets, waits, strict=True):
                streams = tuple(np.delete(code, [row for c, row in pair if c == core], axis=0) for core, code in enumerate(program.streams))
                needed.append(any(f.kind == "race" for f in sanitize_program(Program(program.machine, streams, program.memory), m)))
    assert sum(needed) >= 0.8 * len(needed) > 10, f"{sum(needed)} of {len(needed)}"


def test_an_answer_comes_where_the_count_is_full() -> None:
    """MTE2 -> MTE3 is what keeps a count within its limit, and nothing else."""
    cases = [case_of("residual_block", machine(2, limit)) for limit in (255, 1)]
    wide, narrow = (crossing(compiled(case, split(case, range(2), 4))) for case in cases)
    assert all(key[1] == MTE3 for key in wide)
    answers = {key: len(sets) for key, (sets, _) in narrow.items() if key[1] == MTE2}
    assert answers
    for (source, _, target, _), count in answers.items():
        assert count <= len(narrow[target, MTE3, source, MTE2][0])


def test_which_cores_it_is_does_not_matter() -> None:
    m = machine(4)
    case = case_of("inception_block", m)
    first, second = (compiled(case, split(case, cores, 4)) for cores in ((0, 1, 2, 3), (2, 0, 3, 1)))
    assert {level: t.cycles for level, t in simulate_levels(first, m).items()} == {
        level: t.cycles for level, t in simulate_levels(second, m).items()
    }


def test_shares_store_the_whole_and_no_more() -> None:
    m = machine(4)
    case = case_of("residual_block", m)
    genome = split(case, range(4), 4)
    whole = tuple(gene._replace(cores=(0,)) for gene in genome)
    one, four = (simulate_levels(compiled(case, g), m)["none"] for g in (whole, genome))
    assert one.ddr_write_bytes == four.ddr_write_bytes
    assert four.ddr_read_bytes > one.ddr_read_bytes, "every share loads the weights"


def test_more_cores_than_blocks_and_absent_cores() -> None:
    m = machine(2)
    case = case_of("residual_block", m)
    singles = single_operators(case.target_graph)
    assert not isinstance(singles, Infeasible)
    plan = decode_all(case.target_graph, tuple(gene._replace(blocks=1, cores=(1, 0)) for gene in singles))
    assert not isinstance(plan, Infeasible)
    assert {segment.cores for segment in plan.segments} == {(1,)}, "one iteration, one core"
    segments = tuple(segment.model_copy(update={"cores": (1, 0)}) for segment in plan.segments)
    program = Compiler(case.target_graph).compile(plan.model_copy(update={"segments": segments}))
    assert isinstance(program, Program)
    check_program(case, program)
    assert [len(stream) > 0 for stream in program.streams] == [True, False], "dealt in runs: the last core has the last run"
    away = tuple(segment.model_copy(update={"cores": (2,)}) for segment in plan.segments)
    refused = Compiler(case.target_graph).compile(plan.model_copy(update={"segments": away}))
    assert isinstance(refused, Infeasible)
    assert str(refused) == f"segment 0, {case.target_graph.operators[0].name}: core 2: the machine has cores 0..1"


def test_gene_names_cores_and_its_task_their_number() -> None:
    case = case_of("residual_block", machine(4))
    structures = Structures(case.target_graph)
    assert structures.key(Gene(0, 1, 4, cores=(0, 1))) == structures.key(Gene(0, 1, 4, cores=(3, 2)))
    assert structures.key(Gene(0, 1, 4, cores=(0, 1))) != structures.key(Gene(0, 1, 4, cores=(0, 1, 2)))
    assert structures.key(Gene(0, 1, 2, cores=(0, 1, 2))) == structures.key(Gene(0, 1, 2, cores=(3, 1)))


def test_neighbouring_rows_and_channels_do_not_wait() -> None:
    """Maps of 7x7: what one core stores and what the other reads lie within a few hundred bytes, and are told apart."""
    b = Builder(np.random.default_rng(0), (1, 32, 7, 7))
    x = "x"
    for _ in range(3):
        x = b.conv(x, 32, (1, 1), pads=(0, 0, 0, 0))
    case = make_case(b.model(x), machine(2), DataType.float16)
    rows = compiled(case, tuple(Gene(k, k + 1, 2, cores=(0, 1)) for k in range(3)))
    assert all(len(stream) for stream in rows.streams)
    assert crossing(rows) == {}, "a row is read by the core that made it"
    channels = compiled(case, tuple(Gene(k, k + 1, cores=(0, 1), split="channels") for k in range(3)))
    assert {key[1::2] for key in crossing(channels)} == {(MTE3, MTE2)}, "every core reads all channels"
    check_program(case, rows)
    check_program(case, channels)
