"""Quick plans: no slower than layer by layer, within what levels grant, the same every time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.autoplan import _apply_changes, _keep_faster_genes, _SimulatedProgram, _try_same_ends, quick_genomes, quick_plans
from compiler.build import default_by_level, measure
from compiler.model import LoweredModel, ModelSpec, lower_model
from compiler.plan.plan import ConvTiling, Infeasible, Plan
from compiler.planner.segmentation import cheapest_segmentations, estimate_predictor
from compiler.planner.tweaks import CHANGES, SLIDING, Change
from compiler.segment.channel_splits import pass_counts, runs_with_passes
from compiler.segment.pool_fusion import feed_refusal
from compiler.segment_times import SegmentTimer
from compiler.space.decode import decode
from compiler.space.gene import EVERY_LENGTH, Gene, Genome, block_counts, lower_counts, working_cores
from compiler.space.knobs import part_counts
from compiler.space.operator_order import ordered
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.timing import simulate
from tests.compiler.segment.test_grids import product
from tests.graphs import conv, target_graph
from tests.piece_models import piece_model
from tuner.zoo.load import open_network


def read(machine: str) -> LoweredModel:
    return open_network(ModelSpec(Path("made:mobilenet_v2-small"), load_machine(machine), random_weights=0))


opened = cache(read)


@cache
def plans_of(machine: str) -> dict[str, Plan]:
    return quick_plans(opened(machine))


@pytest.mark.parametrize("machine", ["edge", "ascend310-l2:contention.severe.cores=1,contention.severe.l1_bytes=262144"])
def test_no_level_is_slower_than_layer_by_layer(machine: str) -> None:
    model, plans = opened(machine), plans_of(machine)
    quick, layers = measure(model, plans), measure(model, default_by_level(model))
    for level, found in quick.items():
        assert found.timings[level].cycles <= layers[level].timings[level].cycles
        assert all(found.timings[level].cycles <= other.timings[level].cycles for other in quick.values() if level in other.timings)


def test_plans_are_the_same_every_time() -> None:
    assert quick_plans(read("edge")) == plans_of("edge")


def test_segments_add_up_to_the_program() -> None:
    model = opened("edge")
    plan = plans_of("edge")["slight"]
    program = model.compiler.compile(plan)
    assert not isinstance(program, Infeasible)
    took = SegmentTimer(model.compiler, "slight").cycles(plan)
    assert not isinstance(took, Infeasible)
    whole = simulate(program, model.machine, model.machine.contention["slight"]).cycles
    assert (took >= 0).all()
    assert 0 <= whole - took.sum() <= whole // 100  # the last flags


def test_changes_make_programs_faster() -> None:
    """What simulated programs correct: never slower in the sum of segments, and faster somewhere."""
    model = opened("edge")
    target_graph = ordered(model.target_graph, "depth")
    levels = list(target_graph.machine.contention)
    before = cheapest_segmentations(target_graph, levels, estimate_predictor(target_graph))
    after = {level: genomes[0] for level, genomes in quick_genomes(model.compiler, target_graph, estimate_predictor(target_graph)).items()}
    assert [after[level] for level in levels] != before
    for level, genome in zip(levels, before, strict=True):  # neighbours may have been joined
        ends = [gene.stop for gene in after[level]]
        assert [0, *ends[:-1]] == [gene.start for gene in after[level]]
        assert set(ends) <= {gene.stop for gene in genome}
    joined = [gene for level in levels for gene in after[level] if gene.stop - gene.start > EVERY_LENGTH]
    assert {bool(gene.pinned) for gene in joined} == {True, False}, "with the tilings of the parts, and with its own, whichever is faster"


def test_changes_faster_alone_stay_where_faster_together() -> None:
    """Four segments of 10 cycles; a program is named by their blocks."""
    took = {
        "2112": [9, 10, 10, 12],  # the first is faster, the last is not
        "2111": [9, 10, 10, 10],
        "3113": [9, 10, 10, 12],  # so here,
        "3111": [9, 10, 12, 10],  # but without the last one the program is slower
        "4411": [8, 13, 10, 10],  # what the first one saves, the second loses
        "5151": [9, 10, 9, 10],
    }

    def measured(genome: Genome) -> NDArray[np.int64] | None:
        found = took.get("".join(str(gene.blocks) for gene in genome))
        return None if found is None else np.array(found)

    def with_blocks(new: dict[int, int]) -> tuple[str, int]:
        genome: Genome = tuple(Gene(at, at + 1) for at in range(4))
        before = _SimulatedProgram(genome, np.full(4, 10))
        after = _keep_faster_genes(before, {at: Gene(at, at + 1, blocks) for at, blocks in new.items()}, measured)
        return "".join(str(gene.blocks) for gene in after.genome), int(after.cycles.sum())

    assert with_blocks({0: 2, 3: 2}) == ("2111", 39)
    assert with_blocks({0: 3, 3: 3}) == ("1111", 40)
    assert with_blocks({0: 4, 1: 4}) == ("1111", 40)
    assert with_blocks({0: 5, 2: 5}) == ("5151", 38)
    assert with_blocks({0: 6}) == ("1111", 40), "it does not fit"
    assert with_blocks({}) == ("1111", 40)


def test_segments_lie_at_one_end_where_faster() -> None:
    """Four segments of 10 cycles; a program is named by who lies so.  The first one has nobody before it."""
    took = {"0101": [10, 9, 10, 12], "0100": [10, 9, 10, 10], "0110": [10, 9, 8, 11]}

    def measured(genome: Genome) -> NDArray[np.int64] | None:
        return np.array(took["".join(str(int(gene.same_end)) for gene in genome)])

    found = _try_same_ends(_SimulatedProgram(tuple(Gene(at, at + 1) for at in range(4)), np.full(4, 10)), measured)
    assert [gene.same_end for gene in found.genome] == [False, True, True, False]
    assert found.cycles.sum() == 38


def test_what_is_whole_on_chip_begins_in_blocks() -> None:
    """Where that is faster: the tensor behind stays in L1, and those behind it are one block still."""
    model = open_network(ModelSpec(Path("light:squeezenet,quantised=qdq"), load_machine("edge")))
    target_graph = ordered(model.target_graph, "depth")
    first, *others = quick_genomes(model.compiler, target_graph, estimate_predictor(target_graph), ["none"])["none"][0]
    assert first.sliding
    assert first.blocks > 1
    assert first.held
    assert [gene.blocks for gene in others] == [1]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_keeps_the_place_and_changes_something(change: Change) -> None:
    target_graph = ordered(opened("edge").target_graph, "depth")
    some = (Gene(0, 1), Gene(3, 9, 2), Gene(0, 4, 4, cached=-1), Gene(len(target_graph.operators) - 4, len(target_graph.operators)))
    some += tuple(Gene(start, stop, passes=pass_counts(target_graph, start, stop)[0]) for start, stop in runs_with_passes(target_graph))
    pools = ordered(open_network(ModelSpec(Path("light:squeezenet"), load_machine("edge"), random_weights=0)).target_graph, "depth")
    firsts = {k: min(pools.producers[k], default=k) for k in range(len(pools.operators))}
    fed = tuple(Gene(first, k + 1, 6) for k, first in firsts.items() if not feed_refusal(pools, first, k))
    batch = replace(target_graph, storages=tuple(replace(storage, n=4) for storage in target_graph.storages))
    tried = [(gene, change(target_graph, gene)) for gene in some] + [(gene, change(pools, gene)) for gene in fed]
    tried += [(gene, change(batch, gene)) for gene in (Gene(0, 1), Gene(0, 1, images=2))]
    four, cores = replace(target_graph, machine=load_machine("edge:cores=4")), (0, 1, 2, 3)
    for k in range(len(four.operators)):
        divided = Gene(k, k + 1, 8, cores=cores), Gene(k, k + 1, cores=cores, split="channels")
        tried += [(gene, change(four, gene)) for gene in divided]
    assert all(changed[:2] == gene[:2] for gene, changed in tried)
    assert any(changed != gene for gene, changed in tried)


@pytest.mark.parametrize("cores", [1, 2, 4, 6])
def test_grids_in_order(cores: int) -> None:
    """From rows to a part of the channels for each core and back, all of them fitting genes; fewer than four cores have no grids."""
    target_graph = lower_model(ModelSpec(Path("product.onnx"), load_machine(f"edge:cores={cores}")), product(96, 64, 256)).target_graph
    gene, seen = Gene(0, 1, cores, cores=tuple(range(cores)), cached=-1), list[int]()
    fewer, more = CHANGES[1:3]
    while gene.channels not in seen:
        seen.append(gene.channels)
        assert decode(target_graph, gene) is not None
        assert working_cores(target_graph, gene) == gene.cores
        changed = more(target_graph, gene)
        if changed != gene:
            assert fewer(target_graph, changed).channels == gene.channels
        gene = changed
    halved = CHANGES[0](target_graph, gene._replace(blocks=24))
    assert halved.blocks == (12 if cores > 3 else 24)
    assert seen == ([1, *part_counts(cores), cores] if cores > 3 else [1])


def test_some_channels_are_made_first() -> None:
    """A depthwise convolution behind a product goes on with them."""
    u = target_graph(load_machine("edge"), (1, 16, 40, 40), conv("a", "x", (16, 96), 1), conv("y", "a", (96, 96), 3, groups=96))
    gene = Gene(0, 2, weights="resident")
    (change,) = [change for change in CHANGES if change.__name__ == "_channels_first"]
    plans = [decode(u, g) for g in (gene, change(u, gene))]
    before, after = [plan.tilings[0] for plan in plans if plan is not None]
    assert isinstance(before, ConvTiling)
    assert isinstance(after, ConvTiling)
    assert before.order == "m"
    assert before.tile_m < 40 * 40
    assert after.tile_n1 < 6
    assert after.order == "n"
    assert change(u, Gene(0, 1)) == Gene(0, 1)  # what leaves the chip leaves it tile by tile


def test_live_blocks_are_no_more_than_heights_need() -> None:
    u = target_graph(load_machine("edge"), (1, 16, 56, 56), conv("a", "x", (16, 16), 3), conv("y", "a", (16, 16), 3))
    every, lower = block_counts(u, 0, 2), lower_counts(u, 0, 2)
    highest = [-(-56 // count) for count in range(1, 57)]
    assert lower == tuple(count for count in every if highest[count - 1] not in highest[: count - 1])
    assert set(every) - set(lower) >= {16, 32}
    for change in SLIDING:
        assert change(u, Gene(0, 2, 15, cached=-1)).blocks in lower
        assert change(u, Gene(0, 2, 29, cached=-1)).blocks == 56


def test_more_passes_have_the_same_tilings() -> None:
    """Ranks and chunks of fewer channels would be others, and slower ones."""
    target_graph = ordered(opened("edge").target_graph, "depth")
    change, kept = next(change for change in CHANGES if change.__name__ == "_six_passes"), 0
    for start, stop in runs_with_passes(target_graph):
        gene = Gene(start, stop, passes=2)
        before, after = decode(target_graph, gene), decode(target_graph, change(target_graph, gene))
        if before is not None and after is not None and after.passes > 2:
            assert after.passes >= 6
            assert after.tilings == before.tilings
            kept += 1
    assert kept


def test_every_piece_has_a_plan() -> None:
    model = lower_model(ModelSpec(Path("model"), load_machine("edge")), piece_model("chain"))
    plans = quick_plans(model)
    assert len(model.names) > 1
    for plan in plans.values():
        assert tuple(piece.name for piece in plan.pieces) == model.names
    assert measure(model, plans).keys() == plans.keys()


def test_the_first_of_equal_segments_says_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight equal convolutions: a change that the first loses with is tried of no other."""
    tried = list[list[int]]()

    def faster(target_graph: TargetGraph, gene: Gene) -> Gene:
        return gene._replace(chunk=1)

    def slower(target_graph: TargetGraph, gene: Gene) -> Gene:
        return gene._replace(chunk=2)

    def measured(genome: Genome) -> NDArray[np.int64] | None:
        tried.append([gene.chunk for gene in genome])
        return np.array([(10, 9, 11)[gene.chunk] for gene in genome])

    u = target_graph(load_machine("edge"), (1, 16, 8, 8), *(conv(f"{at + 1}", f"{at or 'x'}", (16, 16), 3) for at in range(8)))
    genome: Genome = tuple(Gene(at, at + 1) for at in range(8))
    monkeypatch.setattr("compiler.autoplan.CHANGES", (slower, faster))
    structures = Structures(u)
    found = _apply_changes(
        u, _SimulatedProgram(genome, np.full(8, 10)), lambda gene: (structures.structure(gene.start, gene.stop), gene[2:]), measured
    )
    assert [gene.chunk for gene in found.genome] == [1] * 8
    assert found.cycles.tolist() == [9] * 8
    assert max(each.count(2) for each in tried) == 1
    assert [gene[:2] for gene in found.genome] == [gene[:2] for gene in genome]
