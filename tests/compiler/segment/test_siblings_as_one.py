"""Siblings as one are a choice of the plan: values stay, whichever segments hold their readers; plans say so and can be edited."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pytest

from compiler.cost.features import raw_features
from compiler.frontend import lower
from compiler.kinds.build import make_unit
from compiler.kinds.conv import ConvSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, parse_plan
from compiler.segment.siblings import as_made, families_in
from compiler.space.decode import realise, realise_all
from compiler.space.gene import Gene, block_counts
from compiler.space.gene_of import gene_of
from compiler.space.moves import MOVES, resized
from compiler.space.order import ordered
from compiler.space.structures import Structures
from compiler.unit.unit import Unit
from simulator.npu.machine import DataType, load_machine
from tests.compiled import Case, check_program, make_case
from tests.models import Builder, inception_block

EDGE = load_machine("edge")
DTYPES = (DataType.float16, DataType.float32)


@lru_cache(maxsize=8)
def block(dtype: DataType, machine: str = "edge") -> Case:
    return make_case(inception_block(np.random.default_rng(0)), load_machine(machine), dtype)


@lru_cache(maxsize=8)
def three(dtype: DataType) -> Case:
    """A family of three whose readers are far apart, and a family of two behind one of them."""
    b = Builder(np.random.default_rng(1), (1, 16, 12, 10))
    first = [b.conv("x", channels, (1, 1), pads=(0, 0, 0, 0)) for channels in (16, 32, 5)]
    last = [b.relu(b.conv(name, 8)) for name in first]
    more = [b.conv(last[1], channels) for channels in (16, 24)]
    ends = [b.conv(name, 8) for name in more]
    return make_case(b.model(*(b.conv(name, 4) for name in (*last, *ends))), EDGE, dtype)


def whole(unit: Unit, genome: tuple[Gene, ...]) -> Plan:
    plan = realise_all(unit, genome)
    assert not isinstance(plan, Infeasible), plan
    return plan


def some_genome(unit: Unit, rng: np.random.Generator) -> tuple[Gene, ...]:
    genes, start = [], 0
    while start < len(unit.kernels):
        stop = min(len(unit.kernels), start + int(rng.integers(1, 10)))
        count = len(families_in(unit, start, stop))
        counts = block_counts(unit, start, stop)
        cached = int(rng.choice([0, -1, 5]))
        genes.append(Gene(start, stop, int(rng.choice(counts[:6])), cached=cached, siblings=(1 << count) - 1 if rng.random() < 0.8 else 0))
        genes[-1] = resized(unit, genes[-1], start, stop)
        start = stop
    return tuple(genes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [block, three])
def test_values_stay(case: type, dtype: DataType) -> None:
    made, rng, merged = case(dtype), np.random.default_rng(2), 0
    for trial in range(8):
        unit = ordered(made.unit, ("file", "depth")[trial % 2])  # type: ignore[arg-type]
        genome = some_genome(unit, rng)
        plan = whole(unit, genome)
        merged += sum(tiling.kind == "sibling" for segment in plan.segments for tiling in segment.tilings)
        assert parse_plan(plan.to_json()) == plan
        program = Compiler(made.unit).compile(plan)
        assert not isinstance(program, Infeasible)
        check_program(made, program)
        for gene, segment in zip(genome, plan.segments, strict=True):
            back = gene_of(unit, segment, gene.start)
            assert back is not None
            assert realise(unit, back) == segment
            assert np.isfinite(raw_features(unit, segment, gene.start)).all()
    assert merged > 4


def test_families() -> None:
    unit = three(DataType.float16).unit
    assert sorted(map(len, unit.families)) == [2, 3]
    for family in unit.families:
        specs = [spec for k in family if isinstance(spec := unit.kernels[k], ConvSpec)]
        assert len({spec.reads for spec in specs}) == 1
    b = Builder(np.random.default_rng(1), (2, 16, 12, 10))
    two = b.model(*(b.conv(b.conv("x", channels), 4) for channels in (16, 16)))
    assert make_unit(lower(two), EDGE, DataType.float16).families == ()


def test_one_convolution_is_made_and_loads_its_input_once() -> None:
    case = block(DataType.float16)
    unit, (family,) = case.unit, case.unit.families
    start, stop = min(family), max(family) + 1
    plans = [realise(unit, Gene(start, stop, siblings=bit)) for bit in (0, 1)]
    found = []
    for plan in plans:
        assert plan is not None
        made = as_made(unit, plan, start)
        assert not isinstance(made, Infeasible)
        found.append(made)
        parts = Compiler(unit).alone(plan, start)
        assert not isinstance(parts, Infeasible)
    (apart, _, _), (joint, plan, first) = found
    assert apart is unit
    assert first == start
    assert len(plan.operators) == stop - start - 1
    spec = joint.kernels[start]
    assert isinstance(spec, ConvSpec)
    assert spec.macs == sum(unit.kernels[k].macs for k in family)
    assert joint.storages[: len(unit.storages)] == unit.storages
    assert joint.storages[spec.y.storage].address == unit.storages[unit.kernels[family[0]].y.storage].address


def test_a_gene_says_it_in_one_way() -> None:
    unit = block(DataType.float16).unit
    (family,) = unit.families
    structures = Structures(unit)
    outside = Gene(max(family), len(unit.kernels))
    assert structures.key(outside._replace(siblings=1)) == structures.key(outside)
    inside = Gene(0, len(unit.kernels))
    assert structures.key(inside._replace(siblings=1)) != structures.key(inside)
    assert realise(unit, outside._replace(siblings=1)) == realise(unit, outside)
    cut = resized(unit, inside._replace(siblings=1), 0, max(family))
    assert cut.siblings == 0
    assert resized(unit, inside._replace(siblings=1), min(family), max(family) + 1).siblings == 1
    toggled = MOVES["toggle_siblings"](unit, (inside,), np.random.default_rng(0))
    assert toggled == (inside._replace(siblings=1),)
    assert MOVES["toggle_siblings"](unit, (outside,), np.random.default_rng(0)) is None


@pytest.mark.parametrize("split", ["rows", "channels"])
def test_on_two_cores(split: str) -> None:
    case = block(DataType.float16, "ascend310")
    unit, (family,) = case.unit, case.unit.families
    start, stop = min(family), max(family) + 1
    genes = [Gene(0, start)] if start else []
    genes.append(Gene(start, stop, 2, cores=(0, 1), split=split, siblings=1))  # type: ignore[arg-type]
    genes += [Gene(k, k + 1) for k in range(stop, len(unit.kernels))]
    plan = whole(unit, tuple(genes))
    program = Compiler(unit).compile(plan)
    assert not isinstance(program, Infeasible)
    check_program(case, program)


def test_a_person_edits_it() -> None:
    unit = block(DataType.float16).unit
    (family,) = unit.families
    names = [spec.name for spec in unit.kernels]
    plan = json.loads(whole(unit, (Gene(0, len(names)),)).to_json())
    tilings = plan["segments"][0]["tilings"]
    tilings[max(family)] = {"kind": "sibling"}
    assert not isinstance(Compiler(unit).compile(parse_plan(json.dumps(plan))), Infeasible)
    kept, tilings[min(family)] = tilings[min(family)], {"kind": "sibling"}
    found = Compiler(unit).compile(parse_plan(json.dumps(plan)))
    assert isinstance(found, Infeasible)
    assert f"of {names[min(family)]} and {names[max(family)]} all but the first are `sibling`, or none" in found.what
    tilings[min(family)] = kept
    tilings[-1] = {"kind": "sibling"}
    found = Compiler(unit).compile(parse_plan(json.dumps(plan)))
    assert isinstance(found, Infeasible)
    assert names[-1] in found.what
    assert "whole family" in found.what
