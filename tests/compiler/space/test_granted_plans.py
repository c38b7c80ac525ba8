"""Plans within what levels grant: decoded for it, laid out within it to the last block, and as they were where all is granted."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from compiler.build import default_by_level, default_plan, measure_plans
from compiler.model import ModelSpec, lower_model
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler, needs_of
from compiler.plan.plan import Infeasible
from compiler.segment.l1_limits import fits_l1, least_l1
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene
from compiler.space.level_limits import l1_of, single_operators_at, within_level
from compiler.space.mutators import random_genome
from compiler.target.level_limits import at_level, l1_grants, limited_to, memory_grants, within_l1
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import InfeasibleError
from simulator.npu.grant import Grant
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.messages import naming
from tests.models import small_graph, small_model

NAMES = ("conv_chain", "residual_block", "inception_block")
SMALL, MIDDLE = 32768, 65536
GRANTS = f"edge:cores=2,contention.slight.l1_bytes={MIDDLE},contention.severe.l1_bytes={SMALL},contention.severe.cores=1"


@lru_cache(maxsize=8)
def target_graph(name: str, machine: str = GRANTS) -> TargetGraph:
    return make_unit(small_graph(name), load_machine(machine), DataType.float16)


def test_sizes_that_levels_leave() -> None:
    machine = target_graph("conv_chain").machine
    assert l1_grants(machine) == (SMALL, MIDDLE, machine.full_grant.l1_bytes)
    assert [grant.l1_bytes for grant in memory_grants(machine)] == [machine.full_grant.l1_bytes, MIDDLE, SMALL]
    assert l1_grants(load_machine("edge")) == (load_machine("edge").full_grant.l1_bytes,)


def test_a_unit_within_all_is_the_unit() -> None:
    u = target_graph("conv_chain")
    assert limited_to(u, u.machine.full_grant) is u
    assert at_level(u, "none") is u
    assert within_l1(u, SMALL) is within_l1(u, SMALL), "one object, so that what is known of it is found again"
    small = at_level(u, "severe")
    assert small.machine.full_grant == Grant(SMALL, 0, 1)
    assert small.memory == u.memory


@pytest.mark.parametrize("name", NAMES)
def test_the_least_is_the_first_that_fits(name: str) -> None:
    u, rng, found = target_graph(name), np.random.default_rng(3), set()
    for _ in range(12):
        for gene in random_genome(u, rng):
            plan = decode(u, gene)
            if plan is None:
                continue
            for each in (plan, plan.model_copy(update={"spread": not plan.spread})):
                first = next((size for size in l1_grants(u.machine) if fits_l1(within_l1(u, size), each, gene.start)), None)
                assert least_l1(u, each, gene.start) == (first or u.machine.full_grant.l1_bytes)
                found.add(first)
    assert {SMALL, MIDDLE} <= found


@pytest.mark.parametrize("name", NAMES)
def test_gene_fits_the_level_it_was_fitted_to(name: str) -> None:
    u, rng, less = target_graph(name), np.random.default_rng(0), 0
    for _ in range(12):
        for gene in random_genome(u, rng):
            found = within_level(u, gene, "severe")
            plan = decode(u, found)
            if plan is None:
                continue
            assert fits_l1(within_l1(u, SMALL), plan, gene.start)
            assert l1_of(u, found) == least_l1(u, plan, gene.start) == SMALL
            less += found != gene
            assert within_level(u, found, "severe") == found
            assert within_level(u, found, "none") == found
    assert less, "some gene did not fit before"


@pytest.mark.parametrize("name", NAMES)
def test_program_lies_within_the_least_sufficient_grant(name: str) -> None:
    """Also where neighbours lie at opposite ends of a memory; and records say the same."""
    u, rng = target_graph(name), np.random.default_rng(1)
    compiler, found = Compiler(u), set()
    for level in ("none", "slight", "severe") * 8:
        genome = tuple(within_level(u, gene, level) for gene in random_genome(u, rng))
        plan = decode_all(u, genome)
        if isinstance(plan, Infeasible):
            continue
        program, parts = compiler.compile(plan), compiler.parts(plan)
        assert not isinstance(program, Infeasible)
        assert not isinstance(parts, Infeasible)
        assert program.needs == needs_of(parts)
        program.verify(u.machine)
        least = max(l1_of(u, gene) or 0 for gene in genome)
        assert program.needs.l1_bytes <= least
        assert not any(low < program.needs.l1_bytes <= high < least for low, high in pairwise(l1_grants(u.machine)))
        found.add(least)
    assert SMALL in found
    assert len(found) > 1


def test_where_all_is_granted_nothing_changes() -> None:
    """A machine with a level that grants less has the programs of one without, as far as they need more than that."""
    plain, granted = target_graph("residual_block", "edge:cores=2"), target_graph("residual_block")
    rng, same = np.random.default_rng(2), 0
    for _ in range(12):
        genome = random_genome(plain, rng)
        one, two = decode_all(plain, genome), decode_all(granted, genome)
        assert isinstance(one, Infeasible) == isinstance(two, Infeasible)
        if isinstance(one, Infeasible) or isinstance(two, Infeasible):
            continue
        assert one.segments == two.segments
        a, b = Compiler(plain).compile(one), Compiler(granted).compile(two)
        assert not isinstance(a, Infeasible)
        assert not isinstance(b, Infeasible)
        if b.needs.l1_bytes > MIDDLE:
            assert all(np.array_equal(x, y) for x, y in zip(a.streams, b.streams, strict=True))
            same += 1
    assert same


def test_single_operators_of_every_grant() -> None:
    u = target_graph("residual_block")
    for level in u.machine.contention:
        genome = single_operators_at(u, level)
        assert not isinstance(genome, Infeasible)
        plan = decode_all(u, genome)
        assert not isinstance(plan, Infeasible)
        assert level in measure_plans(u, {level: plan})


def test_layer_by_layer_fits_every_level() -> None:
    opened = lower_model(ModelSpec(Path("model.onnx"), load_machine(GRANTS)), small_model("residual_block"))
    plans = default_by_level(opened)
    assert plans["none"].machine == plans["severe"].machine == opened.machine.floats_digest
    measured = measure_plans(opened.target_graphs[0], plans)
    for level, each in measured.items():
        assert each.program.needs.fits(opened.machine.granted(level))
        assert set(each.timings) == {at for at in measured if each.program.needs.fits(opened.machine.granted(at))}


def test_no_plan_fits_what_is_too_little() -> None:
    u = target_graph("residual_block", "edge:contention.severe.l1_bytes=1024")
    with pytest.raises(InfeasibleError, match=naming("level severe", "1,024 B of L1")):
        default_plan(u, "severe")
    with pytest.raises(InfeasibleError, match=r"level severe of edge.* [0-9,]+ B of L1, .*1,024"):
        measure_plans(u, {"none": (plan := default_plan(u)), "severe": plan})


def test_strips_and_tilings_follow_the_grant() -> None:
    """What is decoded within less is another plan, not the same one laid out elsewhere."""
    u = target_graph("conv_chain")
    gene = Gene(0, len(u.operators))
    whole, less = decode(u, gene), decode(u, gene._replace(grant=2))
    assert whole is not None
    assert less is None or less.tilings != whole.tilings or fits_l1(within_l1(u, SMALL), whole, 0)
