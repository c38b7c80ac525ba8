"""Every move, every crossover and every repair keeps genomes legal; a genome that does not fit is cut until it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.cost.features import FEATURES, raw_features, scale_features
from compiler.cost.ranking import CHUNK_BUDGETS
from compiler.ops.lower_graph import make_unit
from compiler.plan.plan import MAX_PREFETCH
from compiler.segment.strips import strips
from compiler.space.decode import decode
from compiler.space.gene import WINDOWS, Gene, Genome, bare, block_counts, choice_count, find_fault, splits, whole_or, working_cores
from compiler.space.mutators import MOVES, crossover, random_genome, repaired
from compiler.space.strips import fewest_strips
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.graphs import conv, max_pool
from tests.graphs import target_graph as by_hand
from tests.models import SMALL_MODELS, small_graph

names = st.sampled_from(sorted(SMALL_MODELS))
seeds = st.integers(0, 2**32 - 1)


@lru_cache(maxsize=32)
def target_graph(name: str, machine: str = "tiny") -> TargetGraph:
    return make_unit(small_graph(name), load_machine(machine), DataType.float16)


def assert_legal(u: TargetGraph, genome: Genome) -> None:
    """Covers the operators in order, and every gene is one that `realise` can be asked about."""
    assert find_fault(u, genome, True) is None
    for gene in genome:
        assert type(gene) is Gene
        assert gene.blocks in block_counts(u, gene.start, gene.stop)
        assert 1 <= gene.prefetch <= MAX_PREFETCH
        assert gene.window in WINDOWS
        assert gene.sliding or gene.window == 1, "slots that nobody uses"
        assert 0 <= gene.chunk < len(CHUNK_BUDGETS)
        assert all(0 <= choice < choice_count(u, gene.start + k) for k, choice in enumerate(gene.choices))
        assert gene.cached == whole_or(gene, gene.cached), "one spelling"
        assert gene.choices == () or any(gene.choices), "all zeros has one spelling, so that equal genes have one key"
        assert gene.cores == working_cores(u, gene), "no core without work, for the same reason"
        assert set(gene.cores) <= set(range(u.machine.cores))
        assert gene.cores
        assert list(gene.cores) == sorted(set(gene.cores))
        assert gene.split in splits(u, gene, len(gene.cores)), "and rows on one core"
        fewest = fewest_strips(u, gene.start, gene.stop)
        assert gene.columns >= fewest
        assert gene.columns == 1 or (fewest > 1 and isinstance(strips(u, gene.start, gene.stop, gene.columns), tuple)), (
            "where rows do not fit"
        )


def mutated(u: TargetGraph, rng: np.random.Generator, moves: int) -> Genome:
    """A random genome after random moves."""
    genome = random_genome(u, rng)
    every = list(MOVES.values())
    for _ in range(moves):
        genome = every[int(rng.integers(len(every)))](u, genome, rng) or genome
    return genome


@settings(max_examples=60, deadline=None)
@given(names, seeds, st.integers(0, 30))
def test_every_move_keeps_a_genome_legal(name: str, seed: int, before: int) -> None:
    u, rng = target_graph(name), np.random.default_rng(seed)
    genome = mutated(u, rng, before)
    assert_legal(u, genome)
    for title, move in MOVES.items():
        changed = move(u, genome, np.random.default_rng(seed))
        assert changed == move(u, genome, np.random.default_rng(seed)), f"{title} follows from its generator"
        if changed is None:
            continue
        assert changed != genome, f"{title} changes something, or says that it does not apply"
        assert_legal(u, changed)


def wide() -> TargetGraph:
    """L1 holds three rows of some of its tensors only in strips."""
    narrow, halved, more = conv("a", "x", (16, 32)), max_pool("p", "a", 2, 2), conv("b", "p", (32, 48))
    return by_hand(
        load_machine("tiny:buffers_bytes.L1=24576"), (1, 16, 8, 160), narrow, halved, more, conv("c", "b", (48, 48), residual="b")
    )


def test_strips_come_and_go_with_their_operators() -> None:
    """Every move keeps to the rule; another number of them comes from `change_blocks` alone, and only where there are some."""
    u, seen = wide(), set[str]()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        genome = mutated(u, rng, 4)
        for title, move in MOVES.items():
            changed = move(u, genome, rng)
            if changed is None:
                continue
            assert_legal(u, changed)
            before, after = ({gene[:2]: gene.columns for gene in g} for g in (genome, changed))
            seen |= {title for place in before.keys() & after.keys() if before[place] != after[place]}
            seen |= {f"{title} takes" for place in after.keys() - before.keys() if after[place] > 1}
    assert seen == {"change_blocks", "cut_on_chip takes", "split_segment takes", "merge_segments takes", "shift_border takes"}


def changed_by(move: str, keep: Callable[[Genome, Genome], bool]) -> int:
    """How often a move applies to random genomes; asserts `keep(before, after)` each time."""
    count = 0
    for seed in range(60):
        models = sorted(SMALL_MODELS)
        u, rng = target_graph(models[seed % len(models)]), np.random.default_rng(seed)
        before = mutated(u, rng, 10)
        after = MOVES[move](u, before, rng)
        if after is not None:
            assert keep(before, after), (before, after)
            count += 1
    return count


def same_places(before: Genome, after: Genome) -> bool:
    return [g[:2] for g in before] == [g[:2] for g in after]


def one_gene(before: Genome, after: Genome) -> tuple[Gene, Gene]:
    """The gene that differs, before and after."""
    (pair,) = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    return pair


def only(*names: str) -> Callable[[Genome, Genome], bool]:
    """One gene differs, in these fields."""

    def check(before: Genome, after: Genome) -> bool:
        a, b = one_gene(before, after)
        return a._replace(**{name: getattr(b, name) for name in names}) == b

    return check


def fewer_blocks_leave_cores_idle(before: Genome, after: Genome) -> bool:
    a, b = one_gene(before, after)
    cores = a.cores if a.split == "channels" else a.cores[: b.blocks]
    return a._replace(blocks=b.blocks, cores=cores) == b != a


def other_cores(before: Genome, after: Genome) -> bool:
    """As many others, or more or fewer; blocks only where there would be too few, channels where there are no more."""
    a, b = one_gene(before, after)
    if a.split != b.split and len(b.cores) > 1:
        assert b.split == "rows" or len(b.cores) > a.blocks
    same = a._replace(blocks=b.blocks, cores=b.cores, split=b.split) == b
    return same and a.cores != b.cores and (b.blocks == a.blocks or len(b.cores) > a.blocks)


def the_other_way(before: Genome, after: Genome) -> bool:
    """On the same cores, or from one to several."""
    a, b = one_gene(before, after)
    if b.parts:  # a grid has blocks for its rows
        a = a._replace(blocks=b.blocks)
    same = a._replace(split=b.split, parts=b.parts, cores=b.cores) == b
    return same and (a.split, a.parts) != (b.split, b.parts) and (a.cores == b.cores or len(a.cores) == 1)


def stops(genome: Genome) -> set[int]:
    return {gene.stop for gene in genome}


def one_border_moved(before: Genome, after: Genome) -> bool:
    moved = sorted(stops(before) ^ stops(after))
    return len(before) == len(after) and len(moved) == 2 and moved[1] - moved[0] <= 2


def passes_of(gene: Gene) -> tuple[int, int]:
    return gene.passes, gene.input_passes


def ends(genome: Genome) -> dict[Gene, bool]:
    """By gene, whatever it says of its end, whether its segment lies from the top."""
    found, top = {}, True
    for gene in genome:
        top = top == gene.same_end
        found[bare(gene)] = top
    return found


def others_lie_elsewhere(before: Genome, after: Genome) -> bool:
    """One segment, or all from one on."""
    if [bare(gene) for gene in before] != [bare(gene) for gene in after]:
        return False
    turned = [a != b for a, b in zip(ends(before).values(), ends(after).values(), strict=True)]
    first = turned.index(True)
    return first > 0 and (all(turned[first:]) or sum(turned) == 1)


CHECKS: dict[str, Callable[[Genome, Genome], bool]] = {
    "split_segment": lambda a, b: len(b) == len(a) + 1 and stops(a) < stops(b),
    "merge_segments": lambda a, b: len(b) == len(a) - 1 and stops(b) < stops(a),
    "shift_border": one_border_moved,
    "change_blocks": fewer_blocks_leave_cores_idle,
    "toggle_halo": only("cached"),
    "toggle_held": lambda a, b: a != b and [x._replace(held=0) for x in a] == [x._replace(held=0) for x in b],
    "cut_on_chip": lambda a, b: len(b) == len(a) + 1 and stops(a) < stops(b),
    "change_window": only("window", "sliding"),
    "change_prefetch": lambda a, b: only("prefetch")(a, b) or only("overtake")(a, b) or only("urgent")(a, b),
    "change_end": others_lie_elsewhere,
    "change_weights": lambda a, b: same_places(a, b) and (only("chunk")(a, b) or only("weights")(a, b)),
    "change_tiling": lambda a, b: only("choices")(a, b) or only("on_vector")(a, b),
    "change_passes": lambda a, b: same_places(a, b) and any(passes_of(x) != passes_of(y) for x, y in zip(a, b, strict=True)),
    "change_cores": other_cores,
    "change_split": the_other_way,
}


@pytest.mark.parametrize("move", MOVES)
def test_move_does_no_more_than_its_name(move: str) -> None:
    assert changed_by(move, CHECKS[move]) >= 10


@settings(max_examples=60, deadline=None)
@given(names, seeds)
def test_unmoved_segments_stay_at_their_end(name: str, seed: int) -> None:
    """But for `change_end`; so programs are timed anew only where they are new."""
    u, rng = target_graph(name), np.random.default_rng(seed)
    genome = mutated(u, rng, 6)
    before = ends(genome)
    changes = [MOVES[title](u, genome, rng) for title in MOVES if title != "change_end"]
    for after in (*changes, crossover(genome, mutated(u, rng, 4), rng), repaired(u, genome, lambda gene: gene.stop - gene.start < 3)):
        now = {} if after is None else ends(after)
        if new := [gene for gene in now if gene not in before]:
            stays = [gene for gene in now if gene in before and not new[0].start < gene.start < new[-1].stop]
            assert [now[gene] for gene in stays] == [before[gene] for gene in stays]


def test_parts_of_a_cut_lie_at_opposite_ends() -> None:
    u, genome = target_graph("conv_chain"), (Gene(0, 2), Gene(2, 4), Gene(4, len(target_graph("conv_chain").operators)))
    for seed in range(20):
        cut = MOVES["split_segment"](u, genome, np.random.default_rng(seed))
        assert cut is not None
        assert [gene.same_end for gene in cut].count(True) == (cut[-2].start < 4)
        mine = ends(cut)
        parts = [gene for gene in mine if gene not in genome]
        assert mine[parts[0]] != mine[parts[1]]


def alone(genes: Iterable[Gene]) -> list[Gene]:
    return [bare(gene) for gene in genes]


@settings(max_examples=100, deadline=None)
@given(names, seeds)
def test_crossover_takes_one_stretch_of_the_other(name: str, seed: int) -> None:
    u, rng = target_graph(name), np.random.default_rng(seed)
    a, b = mutated(u, rng, 4), mutated(u, rng, 4)
    child = crossover(a, b, rng)
    if child is None:
        assert alone(a) == alone(b)
        return
    assert_legal(u, child)
    known = set(alone(a))
    new = [gene for gene in child if bare(gene) not in known]
    assert set(new) <= set(b)
    first, last = new[0].start, new[-1].stop
    outside = ([bare(gene) for gene in each if not first <= gene.start < last] for each in (child, a))
    assert next(outside) == next(outside)
    assert alone(child) != alone(a)


def test_crossover_takes_the_least_differing_stretch_or_none() -> None:
    a = (Gene(0, 2), Gene(2, 4), Gene(4, 5))
    b = (Gene(0, 1), Gene(1, 4, 2), Gene(4, 5, 3))
    found = {crossover(a, b, np.random.default_rng(seed)) for seed in range(8)}
    assert found == {(*b[:2], a[2]), (*a[:2], b[2])}
    longer = (*b[:1], Gene(1, 2), Gene(2, 4, 2), a[2])
    found = {crossover(a, longer, np.random.default_rng(seed)) for seed in range(8)}
    stays = a[1]._replace(same_end=True)
    assert found == {(*longer[:2], stays, a[2]), (a[0], longer[2], a[2])}, "what is behind stays at its end"
    assert crossover(a, (*a[:2], a[2]._replace(held=1, same_end=True)), np.random.default_rng(0)) is None, "moves change these"


@settings(max_examples=40, deadline=None)
@given(names, seeds)
def test_a_repaired_genome_fits(name: str, seed: int) -> None:
    u, rng = target_graph(name), np.random.default_rng(seed)
    genome = mutated(u, rng, 5)

    def fits(gene: Gene) -> bool:
        return decode(u, gene) is not None

    whole = repaired(u, genome, fits)
    if whole is None:
        return
    assert_legal(u, whole)
    assert all(map(fits, whole))
    assert {bare(gene) for gene in genome if fits(gene)} <= set(alone(whole)), "what fits stays as it is"
    assert stops(genome) <= stops(whole), "segments are cut, never joined"


def test_repair_cuts_then_adds_blocks_then_gives_up() -> None:
    u = target_graph("conv_chain")
    end = len(u.operators)
    assert end >= 3
    tall = [k for k in range(end) if len(block_counts(u, k, k + 1)) > 2]
    assert tall

    cut = repaired(u, (Gene(0, end),), lambda gene: gene.stop - gene.start == 1)
    assert cut == tuple(Gene(k, k + 1) for k in range(end))
    halved = repaired(u, (Gene(0, 2), Gene(2, end)), lambda gene: gene.start > 0 or gene.stop == 1)
    assert halved == (Gene(0, 1), Gene(1, 2), Gene(2, end, same_end=True)), "what is behind stays at its end"
    more = repaired(u, (Gene(0, end),), lambda gene: gene.stop - gene.start == 1 and (gene.start != tall[0] or gene.blocks >= 3))
    assert more is not None
    assert more[tall[0]].blocks == 3
    assert repaired(u, (Gene(0, end),), lambda gene: gene.start != tall[0]) is None


def test_some_genomes_need_repair_on_a_small_machine() -> None:
    u, rng = target_graph("inception_block"), np.random.default_rng(0)
    genomes = [mutated(u, rng, 5) for _ in range(50)]
    assert any(decode(u, gene) is None for genome in genomes for gene in genome)


def test_a_fault_says_where_a_genome_breaks() -> None:
    u = target_graph("conv_chain")
    end = len(u.operators)
    for bad in (
        (Gene(1, end),),
        (Gene(0, end - 1),),
        (Gene(0, 2), Gene(1, end)),
        (Gene(0, end, choices=(0,)),),
        (Gene(0, 0), Gene(0, end)),
    ):
        assert "operator" in (find_fault(u, bad, True) or "")


# features


@settings(max_examples=60, deadline=None)
@given(names, seeds, st.sampled_from(["tiny", "edge"]))
def test_features_are_finite_and_add_up(name: str, seed: int, machine: str) -> None:
    u, rng = target_graph(name, machine), np.random.default_rng(seed)
    raws, genome = [], mutated(u, rng, 5)
    for gene in genome:
        plan = decode(u, gene)
        if plan is not None:
            raws.append(raw_features(u, plan, gene.start))
    if not raws:
        return
    each = np.stack(raws)
    assert each.shape == (len(raws), len(FEATURES))
    assert np.isfinite(each).all()
    assert (each >= 0).all()
    assert np.isfinite(scale_features(each)).all()
    assert scale_features(each).dtype == np.float32
    assert np.array_equal(scale_features(each)[0], scale_features(each[0]))
    whole = scale_features(each.sum(0))
    at = FEATURES.index("load_bytes")
    assert whole[at] == pytest.approx(np.log2(1 + each[:, at].sum()), rel=1e-6)
    assert whole[FEATURES.index("operators")] == sum(each[:, FEATURES.index("operators")])
    assert 1 <= whole[FEATURES.index("window")] <= max(*WINDOWS, *(gene.blocks for gene in genome))
    assert 1 <= whole[FEATURES.index("prefetch")] <= MAX_PREFETCH
    assert 0 <= whole[FEATURES.index("sliding")] <= 1
