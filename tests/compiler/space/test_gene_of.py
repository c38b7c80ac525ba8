"""A plan that a gene makes is found back as a gene that makes it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from compiler.cost.ranking import CHUNK_BUDGETS
from compiler.kinds.build import make_unit
from compiler.plan.plan import ConvTiling, Infeasible
from compiler.space.decode import realise, realise_all
from compiler.space.gene import WEIGHTS, WINDOWS, Gene, block_counts, choice_count
from compiler.space.gene_of import gene_of, genome_of
from compiler.space.moves import random_genome
from compiler.space.starts import single_operators
from compiler.unit.unit import Unit
from simulator.npu.machine import DataType, load_machine
from tests.models import SMALL_MODELS, small_graph


@lru_cache(maxsize=32)
def unit(name: str, machine: str = "edge") -> Unit:
    return make_unit(small_graph(name), load_machine(machine), DataType.float16)


@pytest.mark.parametrize("machine", ["edge", "tiny", "ascend310"])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_every_gene_s_plan_has_a_gene(name: str, machine: str) -> None:
    u, rng, found = unit(name, machine), np.random.default_rng(5), 0
    count = len(u.kernels)
    for _ in range(25):
        start = int(rng.integers(count))
        stop = min(count, start + int(rng.integers(1, 5)))
        choices = tuple(int(rng.integers(choice_count(u, k))) for k in range(start, stop))
        gene = Gene(
            start, stop, int(rng.choice(block_counts(u, start, stop))), int(rng.integers(1, 4)), int(rng.choice(WINDOWS)),
            int(rng.integers(len(CHUNK_BUDGETS))), WEIGHTS[int(rng.integers(3))], choices,
            tuple(range(int(rng.integers(1, u.machine.cores + 1)))), int(rng.integers(-1, 1 << stop - start)),
            bool(rng.integers(2)), bool(rng.integers(2)), int(rng.choice([0, 64])), columns=int(rng.choice([1, 1, 3])),
        )  # fmt: skip
        plan = realise(u, gene)
        if plan is not None:
            back = gene_of(u, plan, start)
            assert back is not None, gene
            assert realise(u, back) == plan
            found += 1
    assert found


@pytest.mark.parametrize("blocks", [1, 2])
def test_weights_stay_in_any_number_of_blocks(blocks: int) -> None:
    """What is read once may stay, too: a second spelling of the usual gene is the usual gene."""
    u = unit("conv_chain")
    gene = Gene(0, 2, blocks)
    plans = {weights: realise(u, gene._replace(weights=weights)) for weights in WEIGHTS}
    for name in ("resident", "streamed"):
        plan = plans[name]
        assert plan is not None
        assert {t.weights for t in plan.tilings if isinstance(t, ConvTiling)} == {name}
        back = gene_of(u, plan, 0)
        assert back is not None
        assert realise(u, back) == plan
        usual = plan == plans["reused"]
        assert usual == ((name == "resident") == (blocks > 1))
        assert back.weights == ("reused" if usual else name)


def test_a_whole_plan() -> None:
    u, rng, found = unit("conv_chain"), np.random.default_rng(0), 0
    for _ in range(20):
        plan = realise_all(u, random_genome(u, rng))
        if not isinstance(plan, Infeasible):
            genome = genome_of(u, plan)
            assert genome is not None
            assert realise_all(u, genome) == plan
            found += 1
    assert found
    genome = single_operators(u)
    assert not isinstance(genome, Infeasible)
    plan = realise_all(u, genome)
    assert not isinstance(plan, Infeasible)
    assert genome_of(u, plan) == genome
    assert genome_of(u, plan.model_copy(update={"segments": plan.segments[:-1]})) is None
    assert genome_of(unit("residual_block"), plan) is None


def test_what_no_gene_makes_has_none() -> None:
    u = unit("conv_chain")
    plan = realise(u, Gene(0, 1))
    assert plan is not None
    tiling = plan.tilings[0]
    assert isinstance(tiling, ConvTiling)
    odd = plan.model_copy(update={"tilings": (tiling.model_copy(update={"chunk_n1": tiling.chunk_n1 + 7}),)})
    assert gene_of(u, odd, 0) is None
    assert gene_of(u, plan, 1) is None
    assert gene_of(u, plan.model_copy(update={"cores": (3,)}), 0) is None
