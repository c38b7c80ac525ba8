"""The steps of a descent are what single moves make, all of it, and nothing else."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from compiler.derive.gene import MAX_SEGMENT, Gene, Genome, choice_count
from compiler.derive.moves import MOVES, random_genome, verify
from compiler.derive.neighbours import Step, steps
from compiler.tile.spec import Unit
from compiler.tile.unit import make_unit
from simulator.npu.machine import DataType, load_machine
from tests.models import small_graph

# moves whose draws are all steps; the others draw far values of a block count, a ranking, or a threshold, too
EXACT = ("split_segment", "merge_segments", "shift_border", "change_window", "change_prefetch", "change_weights")


@lru_cache(maxsize=4)
def unit(name: str) -> Unit:
    return make_unit(small_graph(name), load_machine("edge"), DataType.float16)


def genomes(name: str) -> list[Genome]:
    rng = np.random.default_rng(4)
    found = []
    for _ in range(6):
        genome = random_genome(unit(name), rng, 2.0)
        for _ in range(6):
            move = MOVES[str(rng.choice([*EXACT, "toggle_halo", "change_tiling"]))]
            genome = move(unit(name), genome, rng) or genome
        found.append(genome)
    return found


@pytest.mark.parametrize("name", ["conv_chain", "residual_block"])
def test_steps_are_what_moves_make(name: str) -> None:
    u, rng, compared = unit(name), np.random.default_rng(0), 0
    for genome in genomes(name):
        found = list(steps(u, genome, lambda _: True, MAX_SEGMENT))
        made = {step.taken(genome) for step in found}
        assert genome not in made
        for changed in made:
            verify(u, changed)
        for move in EXACT:
            only = {step.taken(genome) for step in steps(u, genome, move.__eq__, MAX_SEGMENT)}
            drawn = {changed for _ in range(60) if (changed := MOVES[move](u, genome, rng)) is not None}
            assert drawn - {genome} <= only <= made, move
            compared += len(drawn)
    assert compared > 100


def test_the_order_is_fixed_and_switches_hold() -> None:
    u = unit("conv_chain")
    genome = genomes("conv_chain")[0]
    assert list(steps(u, genome, lambda _: True, MAX_SEGMENT)) == list(steps(u, genome, lambda _: True, MAX_SEGMENT))
    assert list(steps(u, genome, lambda _: False, MAX_SEGMENT)) == []
    assert all(len(step.genes) == 1 == step.width for step in steps(u, genome, "change_tiling".__eq__, MAX_SEGMENT))


def test_values_stay_in_range() -> None:
    u = unit("conv_chain")
    last = choice_count(u, 0) - 1
    ends = {gene.choices for step in steps(u, (Gene(0, 1, choices=(last,)), Gene(1, len(u.kernels))), "change_tiling".__eq__, MAX_SEGMENT)
            for gene in step.genes if gene.stop == 1}  # fmt: skip
    assert ends == {(), (last - 1,), (last - 2,)}
    merged = list(steps(u, (Gene(0, 1), Gene(1, len(u.kernels))), "merge_segments".__eq__, len(u.kernels) - 1))
    assert not merged


def test_a_step_changes_its_genes_only() -> None:
    genome = (Gene(0, 1), Gene(1, 3), Gene(3, 4))
    assert Step(1, 2, (Gene(1, 4),)).taken(genome) == (Gene(0, 1), Gene(1, 4))
