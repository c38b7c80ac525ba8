"""The parts of the search: the table and its segmentations, what to look at, populations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ops.lower_graph import make_unit
from compiler.space.decode import decode
from compiler.space.gene import EVERY_LENGTH, Gene, Genome, block_counts, find_fault, widths
from compiler.space.initial import spread
from compiler.space.mutators import MOVES, random_genome
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.graphs import conv
from tests.graphs import target_graph as graph_unit
from tests.models import small_graph
from tests.plans import with_cores
from tests.tuning import QUICK
from tuner.config import load_config
from tuner.measure.grants import NEVER
from tuner.search.champions import Champions, individual_json, parse_genome, parse_individual
from tuner.search.explore import first_genes, propose_segments, unmeasured_genes
from tuner.search.population import ELITES, MEMBERS, Individual, Population
from tuner.search.sharding import Shard
from tuner.search.table import SegmentTable

LEVELS = ("none", "slight", "severe")
CONFIG = load_config(None, QUICK)
SHARES = CONFIG.segments
seeds = st.integers(0, 2**32 - 1)


@lru_cache(maxsize=16)
def target_graph(name: str, machine: str = "tiny") -> TargetGraph:
    return make_unit(small_graph(name), load_machine(machine), DataType.float16)


@lru_cache(maxsize=16)
def structures(name: str) -> Structures:
    return Structures(target_graph(name))


def random_table(name: str, rng: np.random.Generator, genes: int, singles: bool = True) -> tuple[SegmentTable, list[Gene]]:
    """A table of invented costs, and the genes that were added."""
    u = target_graph(name)
    table, added = SegmentTable(structures(name), len(LEVELS)), []
    for k in range(len(u.operators) if singles else 0):
        added.append(Gene(k, k + 1))
    for _ in range(genes):
        start = int(rng.integers(len(u.operators)))
        stop = int(rng.integers(start + 1, len(u.operators) + 1))
        added.append(Gene(start, stop, int(rng.choice(block_counts(u, start, stop))), int(rng.integers(1, 3))))
    for gene in added:
        fits = rng.random() > 0.2 or gene.stop - gene.start == 1
        table.add(gene, rng.integers(1, 1000, len(LEVELS)) if fits else None)
    return table, added


# the table


def cuts(operators: int) -> Iterator[list[tuple[int, int]]]:
    """Every way to cut operators into consecutive segments."""
    for borders in itertools.product((False, True), repeat=operators - 1):
        at = [0, *(k + 1 for k, cut in enumerate(borders) if cut), operators]
        yield list(itertools.pairwise(at))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["conv_chain", "residual_block", "lrn_chain"]), seeds, st.integers(0, 40), st.sampled_from([0.0, 10.0, 300.0]))
def test_the_cover_is_the_cheapest_of_all(name: str, seed: int, genes: int, border: float) -> None:
    u, rng = target_graph(name), np.random.default_rng(seed)
    table, added = random_table(name, rng, genes)
    operators = len(u.operators)
    assert operators <= 10
    longest = int(rng.integers(1, operators + 1))
    for level in range(len(LEVELS)):
        # independent of the table's own index: the least of every measured gene over the same structure
        price: dict[tuple[int, int], float] = {}
        for start, stop in itertools.combinations(range(operators + 1), 2):
            alike = [g for g in added if structures(name).structure(g.start, g.stop) == structures(name).structure(start, stop)]
            known = [c[level] for g in alike if (c := table.find_cycles(g)) is not None]
            if known and stop - start <= longest:
                price[start, stop] = max(min(known) - border, 0.5 * min(known))
        expected = min(sum(price[part] for part in cut) for cut in cuts(operators) if all(part in price for part in cut))
        found = table.segmentation(level, border, longest=longest)
        assert found is not None
        genome, cost = found
        assert find_fault(u, genome, True) is None
        assert cost[-1] == pytest.approx(expected)
        mine = [table.find_cycles(gene) for gene in genome]
        assert all(cycles is not None for cycles in mine)
        paid = [max(c[level] - border, 0.5 * c[level]) for c in mine if c is not None]
        assert sum(paid) == pytest.approx(expected), "and its genes cost what it says"
        assert all(gene.stop - gene.start <= longest for gene in genome)
        assert np.isfinite(cost).all()


def test_longer_segments_count_once_they_are_measured() -> None:
    names = ["x", *(f"y{k}" for k in range(EVERY_LENGTH + 6))]
    u = graph_unit(load_machine("tiny"), (1, 16, 4, 4), *(conv(y, x, (16, 16), 1) for x, y in itertools.pairwise(names)))
    table, long = SegmentTable(Structures(u), len(LEVELS)), Gene(2, EVERY_LENGTH + 5)
    for k in range(len(u.operators)):
        table.add(Gene(k, k + 1), np.full(len(LEVELS), 100))
    with table.temporary():
        table.add(long, np.full(len(LEVELS), 500))
        found = table.segmentation(0)
        assert found is not None
        assert long in found[0]
        assert found[1][-1] == 500 + 3 * 100
        assert (2, EVERY_LENGTH + 5, 0) in table.runs_of({table.structures.structure(long.start, long.stop): 0})
        shorter = table.segmentation(0, longest=EVERY_LENGTH)
        assert shorter is not None
        assert long not in shorter[0]
    found = table.segmentation(0)
    assert found is not None
    assert long not in found[0]


def test_unknown_operator_leaves_no_cover() -> None:
    u, table = target_graph("conv_chain"), SegmentTable(structures("conv_chain"), len(LEVELS))
    assert table.segmentation(0) is None
    assert table.singles() is None
    for k in range(len(u.operators) - 1):
        table.add(Gene(k, k + 1), np.array([5, 6, 7]))
    assert table.segmentation(0) is None
    table.add(Gene(len(u.operators) - 1, len(u.operators)), None)
    assert table.segmentation(0) is None, "infeasible is known, and segmentations nothing"
    table.add(Gene(len(u.operators) - 2, len(u.operators)), np.array([5, 6, 7]))
    assert table.singles() is None
    found = table.segmentation(0)
    assert found is not None
    assert found[0][-1] == Gene(len(u.operators) - 2, len(u.operators))


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_singles_are_single_and_best_over_the_levels(seed: int) -> None:
    u, rng = target_graph("residual_block"), np.random.default_rng(seed)
    table, added = random_table("residual_block", rng, 0)
    for k in range(len(u.operators)):
        for blocks in block_counts(u, k, k + 1)[1:4]:
            added.append(Gene(k, k + 1, blocks))
            table.add(added[-1], rng.integers(1, 1000, len(LEVELS)))
    genome = table.singles()
    assert genome is not None
    assert find_fault(u, genome, True) is None
    assert all(gene.stop == gene.start + 1 for gene in genome)
    for gene in genome:
        mine = table.find_cycles(gene)
        assert mine is not None
        name = structures("residual_block").structure(gene.start, gene.stop)
        alike = [table.find_cycles(g) for g in added if structures("residual_block").structure(g.start, g.stop) == name]
        assert np.log(mine).sum() == pytest.approx(min(np.log(c).sum() for c in alike if c is not None))


def test_table_remembers_first_answer_and_best() -> None:
    table = SegmentTable(structures("conv_chain"), 2)
    slow, fast = Gene(0, 1), Gene(0, 1, 2)
    table.add(slow, np.array([9, 9]))
    table.add(slow, np.array([1, 1]))
    assert table.find_cycles(slow) is not None
    assert table.find_cycles(slow).tolist() == [9, 9]  # type: ignore[union-attr]
    table.add(fast, np.array([5, 20]))
    assert table.best(0, 1, 0) == (5, fast)
    assert table.best(0, 1, 1) == (9, slow)
    assert table.best(0, 2, 0) is None
    assert table.known(fast)
    assert not table.known(Gene(0, 1, 3))
    assert table.sum_cycles((slow, Gene(1, 2))) is None
    table.add(Gene(1, 2), np.array([100, 200]))
    assert table.sum_cycles((slow, Gene(1, 2))).tolist() == [109, 209]  # type: ignore[union-attr]


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_what_a_table_learns_aside_is_forgotten(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, added = random_table("lrn_chain", rng, 30)
    twin = SegmentTable(structures("lrn_chain"), len(LEVELS))
    for gene in added:
        twin.add(gene, table.find_cycles(gene), table.moved(gene))
    with table.temporary():
        other, more = random_table("lrn_chain", rng, 30)
        for gene in more:
            table.add(gene, other.find_cycles(gene), 7)
        assert not any(table.add(gene, other.find_cycles(gene), 7) for gene in more)
    assert list(table.cycles) == list(twin.cycles)
    assert table.moved_bytes == twin.moved_bytes
    assert table.singles() == twin.singles()
    for level in range(len(LEVELS)):
        mine, theirs = table.segmentation(level, 3.0), twin.segmentation(level, 3.0)
        assert mine is not None
        assert theirs is not None
        assert mine[0] == theirs[0]


def test_noise_moves_segmentations_and_follows_its_generator() -> None:
    table, _ = random_table("residual_block", np.random.default_rng(0), 60)
    segmentations = [table.segmentation(0, 0.0, 0.5, np.random.default_rng(seed)) for seed in range(20)]
    assert len({found[0] for found in segmentations if found}) > 1
    again = table.segmentation(0, 0.0, 0.5, np.random.default_rng(3))
    assert again is not None
    assert segmentations[3] is not None
    assert again[0] == segmentations[3][0]


# what to look at


@pytest.mark.parametrize("caching", [False, True])
def test_first_genes_cover_operators_in_all_block_counts(caching: bool) -> None:
    u, table = target_graph("residual_block"), SegmentTable(structures("residual_block"), len(LEVELS))
    genes = first_genes(u, table, caching)
    assert any(gene.cached for gene in genes) == caching
    keys = [structures("residual_block").key(gene) for gene in genes]
    assert len(set(keys)) == len(keys), "equal structures once"
    for k in range(len(u.operators)):
        for blocks in block_counts(u, k, k + 1)[:12]:
            assert structures("residual_block").key(Gene(k, k + 1, blocks, cached=-1 if caching else 0)) in keys
    table.add(genes[0], np.array([1, 1, 1]))
    assert first_genes(u, table, caching) == genes[1:]
    assert unmeasured_genes(table, [genes[0], genes[1], genes[1]]) == [genes[1]]


def test_widths_are_looked_at_where_there_are_cores() -> None:
    """Powers of two, and all; no core without work; on one core there is nothing to choose."""
    one, four = (make_unit(small_graph("inception_block"), with_cores(load_machine("tiny"), count), DataType.float16) for count in (1, 4))
    found = first_genes(four, SegmentTable(Structures(four), len(LEVELS)), False)
    assert {gene.cores for gene in found} == {(0,), (0, 1), (0, 1, 2, 3)}
    assert all(len(gene.cores) <= gene.blocks for gene in found if gene.split == "rows")
    assert {len(gene.cores) for gene in found if gene.split == "channels"} == {2, 4}
    assert [gene for gene in found if len(gene.cores) == 1] == first_genes(one, SegmentTable(Structures(one), len(LEVELS)), False)
    assert widths(make_unit(small_graph("inception_block"), with_cores(load_machine("tiny"), 6), DataType.float16)) == [1, 2, 4, 6]
    wide = spread(four, tuple(Gene(k, k + 1) for k in range(len(four.operators))))
    assert {gene.cores for gene in wide if four.operators[gene.start].out_h >= 4} == {(0, 1, 2, 3)}
    assert all(decode(four, gene) for gene in wide)


def test_what_another_shard_holds_is_left_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is found out whether they fit; what is proposed is the same."""
    u = target_graph("inception_block")
    table, _ = random_table("inception_block", np.random.default_rng(0), 40)
    segmentations = [found[0] for level in range(len(LEVELS)) if (found := table.segmentation(level))]
    shares = [Shard(table.structures, count, index) for count in (3, 10) for index in range(count)]

    def proposed() -> list[dict[Gene, str]]:
        return [
            propose_segments(u, table, segmentations, 60, np.random.default_rng(1), MOVES, SHARES, u.machine.cores, share)
            for share in shares
        ]

    found = proposed()
    for share, genes in zip(shares, found, strict=True):
        assert genes
        assert all(share.holds(table.structures.key(gene)) for gene in genes)
    monkeypatch.setattr(Shard, "may_hold", lambda self, gene: True)
    assert proposed() == found


def test_proposals_are_new_legal_and_follow_the_generator() -> None:
    u = target_graph("inception_block")
    table, _ = random_table("inception_block", np.random.default_rng(0), 40)
    segmentations = [found[0] for level in range(len(LEVELS)) if (found := table.segmentation(level))]
    genes = propose_segments(u, table, segmentations, 90, np.random.default_rng(1), MOVES, SHARES)
    assert genes == propose_segments(u, table, segmentations, 90, np.random.default_rng(1), MOVES, SHARES)
    assert 45 <= len(genes) <= 90 + 8
    names = [name for by in genes.values() for name in by.split(",")]
    assert set(names) <= {*MOVES, "random"}
    assert len(set(names)) > 8
    assert any("," in by for by in genes.values())
    keys = [structures("inception_block").key(gene) for gene in genes]
    assert len(set(keys)) == len(keys)
    assert not set(keys) & set(table.cycles)
    for gene in genes:
        assert 0 <= gene.start < gene.stop <= len(u.operators)
        assert gene.blocks in block_counts(u, gene.start, gene.stop)
    several = (propose_segments(u, table, segmentations, 90, np.random.default_rng(seed), MOVES, SHARES) for seed in range(4))
    assert len({gene.window for found in several for gene in found if gene.sliding}) >= 3
    assert any(gene.cached for gene in genes)
    without = propose_segments(
        u,
        table,
        segmentations,
        60,
        np.random.default_rng(1),
        {name: move for name, move in MOVES.items() if name not in ("change_window", "toggle_halo")},
        SHARES,
    )
    assert {(gene.window, gene.sliding) for gene in without} == {(1, False)}
    assert {gene.cached for gene in without} == {0}


def test_shares_say_where_genes_are_looked_for() -> None:
    """All of them anywhere: runs as long as chance makes them.  All near single operators: runs of one, or of two where one was merged."""
    u = target_graph("inception_block")
    table, _ = random_table("inception_block", np.random.default_rng(0), 40)
    segmentations = [found[0] for level in range(len(LEVELS)) if (found := table.segmentation(level))]

    def lengths(**shares: float) -> list[int]:
        genes = propose_segments(u, table, segmentations, 60, np.random.default_rng(1), MOVES, SHARES.model_copy(update=shares))
        return [gene.stop - gene.start for gene in genes]

    assert max(lengths(random=1.0, singles=0.0)) > 3
    assert set(lengths(random=0.0, singles=1.0)) == {1}
    assert lengths(random=0.5, singles=0.2) == lengths()


# population


def individual(cycles: Sequence[int], task: str, genome: Genome = ()) -> Individual:
    return Individual(genome, np.array(cycles, np.int64), task)


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 60))
def test_a_population_keeps_the_best_of_every_level(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    everyone = [individual(rng.integers(1, 30, 3).tolist(), f"{number:02d}") for number in range(count)]
    population = Population().admit(everyone)
    kept = [m.task for m in population.members]
    shuffled = Population().admit([everyone[int(place)] for place in rng.permutation(count)])
    assert kept == [m.task for m in shuffled.members], "the order of arrival does not matter"
    assert len(kept) == len(set(kept)) == min(count, MEMBERS)
    for level in range(3):
        best = sorted(everyone, key=lambda m: (m.cycles[level], m.task))[:ELITES]
        assert {m.task for m in best} <= set(kept)
    again = population.admit(everyone)
    assert [m.task for m in again.members] == kept, "the same again changes nothing"
    assert again.idle == (count,) * 3, "and is no gain"


@given(seeds, st.integers(1, 40))
def test_parents_fit_their_level_and_differ_in_borders(seed: int, count: int) -> None:
    """The fastest in half of the draws; another one only with other borders than all that are faster."""
    rng = np.random.default_rng(seed)
    genomes = [tuple(Gene(start, start + 1) for start in starts) for starts in ((0,), (0, 1), (0, 2), (0, 1, 2))]
    cycles = np.where(rng.random((count, 3)) < 0.3, NEVER, rng.integers(1, 30, (count, 3)))
    cycles[0] = 29
    population = Population().admit(
        [individual(row.tolist(), f"{place:02d}", genomes[int(rng.integers(len(genomes)))]) for place, row in enumerate(cycles)]
    )
    for level in range(3):
        parents = [population.parent(level, rng) for _ in range(64)]
        assert max(int(parent.cycles[level]) for parent in parents) < NEVER
        assert sum(parent is population.best(level) for parent in parents) > 16
        fastest = {parent.genome: parent for parent in sorted(parents, key=lambda m: -int(m.cycles[level]))}
        assert len({id(parent) for parent in parents}) == len(fastest)
        for parent in fastest.values():
            same = [int(m.cycles[level]) for m in population.members if m.genome == parent.genome]
            assert int(parent.cycles[level]) == min(same)


def test_individuals_survive_json() -> None:
    u = target_graph("conv_chain")
    one = individual([1, 2, 3], "t", random_genome(u, np.random.default_rng(0)))
    two = parse_individual(json.loads(json.dumps(individual_json(one))))
    assert (two.genome, two.cycles.tolist(), two.task) == (one.genome, one.cycles.tolist(), one.task)
    genome = (Gene(0, 2, 3, 1, 2, 4, False, (1, 2)), Gene(2, 3))
    assert parse_genome(json.loads(json.dumps(genome))) == genome


def test_ties_go_to_the_smaller_digest() -> None:
    a, b = individual([5, 7], "a", (Gene(0, 1),)), individual([5, 6], "b", (Gene(0, 1),))
    for order in ((a, b), (b, a)):
        champions = Champions(2)
        for one in order:
            champions.note(one)
        assert [m.task for m in champions.best if m] == ["a", "b"]
        assert champions.baseline(0) is b
    champions.note(individual([1, 1], "c", (Gene(0, 2),)))
    assert champions.baseline(0) is b, "a baseline has single operators only"
