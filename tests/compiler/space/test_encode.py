"""Every plan that can be run is found back as the gene that makes it."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compiler.cost.ranking import CHUNK_BUDGETS
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, Infeasible, VectorTiling, parse_plan
from compiler.space.decode import decode, decode_all
from compiler.space.encode import encode, genome_of
from compiler.space.gene import (
    PINS,
    WEIGHTS,
    WINDOWS,
    Gene,
    Genome,
    block_counts,
    choice_count,
    find_fault,
    gene_json,
    pinned_tilings,
    pins_of,
)
from compiler.space.initial import on_cores, single_operators
from compiler.space.mutators import MOVES, random_genome
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import SMALL_MODELS, small_graph
from tests.plans import random_plan, with_cores
from tuner.search.champions import parse_genome
from tuner.search.hashing import genome_name
from tuner.search.packing import pack_genomes, unpack_genomes


@lru_cache(maxsize=32)
def target_graph(name: str, machine: str = "edge", cores: int | None = None) -> TargetGraph:
    found = load_machine(machine)
    return make_unit(small_graph(name), found if cores is None else with_cores(found, cores), DataType.float16)


@pytest.mark.parametrize("machine", ["edge", "tiny", "ascend310"])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_every_gene_s_plan_has_a_gene(name: str, machine: str) -> None:
    u, rng, found, named = target_graph(name, machine), np.random.default_rng(3), 0, 0
    count = len(u.operators)
    for _ in range(25):
        start = int(rng.integers(count))
        stop = min(count, start + int(rng.integers(1, 5)))
        choices = tuple(int(rng.integers(choice_count(u, k))) for k in range(start, stop))
        gene = Gene(
            start, stop, int(rng.choice(block_counts(u, start, stop))), int(rng.integers(1, 4)), int(rng.choice(WINDOWS)),
            int(rng.integers(len(CHUNK_BUDGETS))), WEIGHTS[int(rng.integers(3))], choices,
            tuple(range(int(rng.integers(1, u.machine.cores + 1)))), int(rng.integers(-1, 1 << stop - start)),
            bool(rng.integers(2)), bool(rng.integers(2)), columns=int(rng.choice([1, 1, 3])),
        )  # fmt: skip
        plan = decode(u, gene)
        if plan is not None:
            back = encode(u, plan, start)
            assert back is not None, gene
            assert decode(u, back) == plan
            named += not back.pinned
            found += 1
    assert found
    assert named >= found - 1, "with the fields that a search would ask with, mostly"


@pytest.mark.parametrize("blocks", [1, 2])
def test_weights_stay_in_any_number_of_blocks(blocks: int) -> None:
    """What is read once may stay, too: a second spelling of the usual gene is the usual gene."""
    u = target_graph("conv_chain")
    gene = Gene(0, 2, blocks)
    plans = {weights: decode(u, gene._replace(weights=weights)) for weights in WEIGHTS}
    for name in ("resident", "streamed"):
        plan = plans[name]
        assert plan is not None
        assert {t.weights for t in plan.tilings if isinstance(t, ConvTiling)} == {name}
        back = encode(u, plan, 0)
        assert back is not None
        assert decode(u, back) == plan
        usual = plan == plans["reused"]
        assert usual == ((name == "resident") == (blocks > 1))
        assert back.weights == ("reused" if usual else name)


def test_a_whole_plan() -> None:
    u, rng, found = target_graph("conv_chain"), np.random.default_rng(0), 0
    for _ in range(20):
        plan = decode_all(u, random_genome(u, rng))
        if not isinstance(plan, Infeasible):
            genome = genome_of(u, plan)
            assert genome is not None
            assert decode_all(u, genome) == plan
            found += 1
    assert found
    genome = single_operators(u)
    assert not isinstance(genome, Infeasible)
    plan = decode_all(u, genome)
    assert not isinstance(plan, Infeasible)
    assert genome_of(u, plan) == genome
    assert genome_of(u, plan.model_copy(update={"segments": plan.segments[:-1]})) is None
    assert genome_of(target_graph("residual_block"), plan) is None


@given(st.integers(-1, (1 << 100) - 1), st.integers(0, 40))
def test_genes_of_long_segments_travel(cached: int, blocks: int) -> None:
    genome = Gene(0, 100, blocks, cached=cached, choices=(0, 3)), Gene(100, 101)
    assert unpack_genomes(pack_genomes([genome, (Gene(0, 1),)])) == [genome, (Gene(0, 1),)]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(SMALL_MODELS)),
    machine=st.sampled_from(["edge", "tiny"]),
    cores=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_plan_that_runs_has_a_gene(name: str, machine: str, cores: int, seed: int) -> None:
    """Any tilings of the space, blocks, strips, halos and cores: to the letter, through JSON, and None exactly where it does not run."""
    u = target_graph(name, machine, cores)
    plan = random_plan(u, np.random.default_rng(seed), strips=True)
    assume(plan is not None)
    assert plan is not None
    genome = genome_of(u, plan)
    assert (genome is None) == isinstance(Compiler(u).compile(plan), Infeasible)
    if genome is None:
        return
    assert find_fault(u, genome, True) is None
    assert decode_all(u, genome) == plan == parse_plan(plan.to_json())
    assert parse_genome(json.loads(json.dumps([gene_json(gene) for gene in genome]))) == genome
    assert unpack_genomes(pack_genomes([genome])) == [genome]
    structures = Structures(u)
    for gene in genome:
        if gene.pinned:
            other = gene._replace(pinned=(*gene.pinned[:-5], gene.pinned[-5] + 1, *gene.pinned[-4:]))
            assert structures.key(gene) != structures.key(other), "another tiling is another computation"
            assert genome_name((gene,)) != genome_name((other,))


def test_pins_are_numbers_of_every_tiling() -> None:
    tilings = (
        ConvTiling(weights="streamed", chunk_n1=3, chunk_k1=1 << 20, tile_m=32, tile_n1=5, tile_k1=7, order="n"),
        ConvTiling(weights="resident", chunk_n1=1, chunk_k1=2, tile_m=16, tile_n1=4, tile_k1=6, order="m", constants="streamed"),
        VectorTiling(tile_planes=2, tile_rows=3),
        VectorTiling(tile_planes=2, tile_rows=1, tile_columns=9, constants="streamed"),
    )
    pins = pins_of(tilings)
    assert pinned_tilings(pins) == tilings
    assert len(pins) == len(tilings) * PINS


def test_moves_keep_pins_where_blocks_are_unchanged() -> None:
    """A plan that no rank names, changed by every move: pins stay with the division and the tilings, and go with them."""
    u, rng, kept = target_graph("conv_chain", cores=2), np.random.default_rng(3), dict.fromkeys(MOVES, 0)
    genome = odd_genome(u)
    for name, move in MOVES.items():
        for _ in range(30):
            changed = move(u, genome, rng)
            if changed is None or changed == genome:
                continue
            assert find_fault(u, changed, True) is None
            for gene in changed:
                division = ("start", "stop", "blocks", "columns", "split", "cached", "passes", "input_passes")
                alike = [old for old in genome if all(getattr(old, field) == getattr(gene, field) for field in division)]
                stays = any(len(old.cores) == len(gene.cores) for old in alike) and name not in ("change_tiling", "change_weights")
                assert bool(gene.pinned) == (stays or gene in genome), (name, gene)
                plan = decode(u, gene)
                if gene.pinned and gene not in genome and plan is not None:
                    assert plan.tilings == pinned_tilings(gene.pinned)
                    kept[name] += 1
    assert {name for name, count in kept.items() if count} >= {"change_window", "change_prefetch"}
    wide = on_cores(u, genome[0], 2)
    assert wide is not None
    assert not wide.pinned
    assert on_cores(u, genome[0], 1) == genome[0]


def odd_genome(u: TargetGraph) -> Genome:
    """Operators in pairs, the last of odd ones alone, in two blocks, with tiles that no rank has."""
    found, count = list[Gene](), len(u.operators)
    for start in range(0, count, 2):
        plan = decode(u, Gene(start, min(count, start + 2), 2))
        assert plan is not None
        tilings = [
            t.model_copy(update={"chunk_n1": t.chunk_n1 + 7} if isinstance(t, ConvTiling) else {"tile_rows": 1}) for t in plan.tilings
        ]
        gene = encode(u, plan.model_copy(update={"tilings": tuple(tilings)}), start)
        assert gene is not None
        assert gene.pinned
        found.append(gene)
    return tuple(found)


def test_what_does_not_run_has_no_gene() -> None:
    u = target_graph("conv_chain")
    plan = decode(u, Gene(0, 1))
    assert plan is not None
    tiling = plan.tilings[0]
    assert isinstance(tiling, ConvTiling)
    for far in ({"tile_m": 1 << 20}, {"tile_n1": 1 << 20}):
        assert encode(u, plan.model_copy(update={"tilings": (tiling.model_copy(update=far),)}), 0) is None
    assert encode(u, plan.model_copy(update={"tilings": (VectorTiling(tile_planes=1, tile_rows=1),)}), 0) is None
    assert encode(u, plan, 1) is None
    assert encode(u, plan.model_copy(update={"cores": (3,)}), 0) is None
