"""Placement in the search: pieces, list schedules, stages and walks of small networks on two cores, and what they leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.frontend.lower import lower
from compiler.ops.lower_graph import make_unit
from compiler.space.decode import decode
from compiler.space.gene import Gene, Genome, find_fault
from compiler.space.mutators import MOVES
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiler.segment.test_grids import product
from tests.models import small_graph
from tests.tuner.search.searching import Local, LocalSearch
from tuner.config import load_config
from tuner.log.record import RESULTS
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request
from tuner.search.annealer import Annealer
from tuner.search.ask_tell import run_to_end
from tuner.search.explore import first_genes, propose_segments
from tuner.search.placement import Placer, runs_in_sequence, segment_cut
from tuner.search.table import SegmentTable

LEVELS = ("none", "severe")
MOVED = [RESULTS.index("ddr_read_bytes"), RESULTS.index("ddr_write_bytes")]


@lru_cache(maxsize=4)
def target_graph(name: str = "inception_block", cores: int = 2) -> TargetGraph:
    """On a machine whose bandwidth lets the cores run side by side."""
    machine = load_machine("ascend310")
    ddr = machine.ddr.model_copy(update={"bytes_per_cycle": 67 * cores})
    return make_unit(small_graph(name), machine.model_copy(update={"cores": cores, "ddr": ddr}), DataType.float16)


@lru_cache(maxsize=4)
def measured(name: str = "inception_block", cores: int = 2) -> tuple[Evaluator, SegmentTable]:
    """Everything that a search measures first."""
    u = target_graph(name, cores)
    evaluator, table = Evaluator(u, LEVELS), SegmentTable(Structures(u), len(LEVELS))
    for gene in first_genes(u, table, False):
        values = evaluator.measure(Request("segment", (gene,))).values
        table.add(gene, None if values is None else values[:, 0], 0 if values is None else int(values[0, MOVED].sum()))
    return evaluator, table


def placer(table: SegmentTable, **values: float) -> Placer:
    return Placer(table, LEVELS, load_config(None, [f"placement.{key}={value}" for key, value in values.items()]).placement)


def cycles(evaluator: Evaluator, kind: str, genome: Genome) -> NDArray[np.int64]:
    values = evaluator.measure(Request("program" if kind == "program" else "stage", genome)).values
    assert values is not None
    return values[:, 0]


class Ears:
    """Measures stages, and remembers them."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator, self.heard = evaluator, list[Genome]()

    def __call__(self, requests: Sequence[Request]) -> list[Measurement]:
        assert {request.kind for request in requests} <= {"stage"}
        self.heard += [request.genome for request in requests]
        return [self.evaluator.measure(request) for request in requests]


def singles(table: SegmentTable) -> Genome:
    segmentation = table.segmentation(0, longest=1, width=1)
    assert segmentation is not None
    return segmentation[0]


def test_a_stage_of_everything_is_the_program() -> None:
    evaluator, table = measured()
    genome = tuple(gene._replace(cores=(i % 2,)) for i, gene in enumerate(singles(table)))
    program, stage = (evaluator.measure(Request(kind, genome)) for kind in ("program", "stage"))
    assert program.values is not None
    assert stage.values is not None
    assert np.array_equal(stage.values, program.values), "roofline included"
    assert stage.payload != program.payload
    part = evaluator.measure(Request("stage", genome[1:3])).values
    assert part is not None
    assert (part[:, 0] < program.values[:, 0]).all()
    assert (part[:, 1] <= part[:, 0]).all(), "no stage is faster than its roofline"


def test_parallel_time_is_between_longest_and_sum() -> None:
    evaluator, table = measured()
    genes = singles(table)
    pair = [genes[k] for k in range(len(genes)) if not target_graph().producers[genes[k].start]][:2]
    alone = [table.find_cycles(gene) for gene in pair]
    both = cycles(evaluator, "stage", tuple(gene._replace(cores=(i,)) for i, gene in enumerate(pair)))
    a, b = (known[0] for known in alone if known is not None)
    assert max(a, b) <= both[0] < a + b


def test_pieces_know_what_was_measured() -> None:
    _, table = measured()
    pieces = placer(table).cut_graph(segment_cut(singles(table)), 0, 0.0)
    assert pieces is not None
    for genes, times, moved in zip(pieces.genes, pieces.times, pieces.moved, strict=True):
        assert list(genes) == list(times) == list(moved)
        assert 1 in genes
        for width, gene in genes.items():
            known = table.find_cycles(gene)
            assert known is not None
            assert (times[width], len(gene.cores)) == (known[0], width)
            assert moved[width] > 0
        assert list(times.values()) == sorted(times.values(), reverse=True), "more cores only where that is faster"
    assert placer(table).cut_graph([(0, len(target_graph().operators))], 0, 0.0) is None, "never measured"


@pytest.mark.parametrize("cores", [2, 4])
def test_list_schedules_are_genomes_with_near_estimates(cores: int) -> None:
    evaluator, table = measured("inception_block", cores)
    p = placer(table)
    pieces = p.cut_graph(segment_cut(singles(table)), 0, 0.0)
    assert pieces is not None
    found = p.list_schedules(pieces)
    assert [expected for expected, _ in found] == sorted(expected for expected, _ in found)
    assert {core for _, genome in found for gene in genome for core in gene.cores} == set(range(cores))
    for expected, genome in found:
        assert find_fault(target_graph("inception_block", cores), genome, True) is None
        took = cycles(evaluator, "program", genome)[0]
        assert 0.6 * took < expected < 1.6 * took
    one = cycles(evaluator, "program", singles(table))[0]
    assert min(cycles(evaluator, "program", genome)[0] for _, genome in found) < one


def test_stages_are_measured_and_remembered() -> None:
    evaluator, table = measured()
    p, ears = placer(table), Ears(evaluator)
    pieces = p.cut_graph(segment_cut(singles(table)), 0, 0.0)
    assert pieces is not None
    staged = run_to_end(p.propose_stages(pieces, 0, 0.0), ears)
    assert staged is not None
    assert ears.heard
    assert staged.clusters < len(pieces.dag)
    for genome in (staged.genome, *staged.schedules):
        assert find_fault(target_graph(), genome, True) is None
        assert segment_cut(genome) == segment_cut(singles(table))
    count = len(ears.heard)
    again = run_to_end(p.propose_stages(pieces, 0, 0.0), ears)
    assert again is not None
    assert (again.genome, len(ears.heard)) == (staged.genome, count)
    other = run_to_end(p.propose_stages(pieces, 1, 0.0), ears)
    assert other is not None, "stages are measured at all levels at once"
    # barriers only cost: what waits for its inputs alone is done no later, but for what the cores' ports lose to each other
    assert cycles(evaluator, "program", staged.genome)[0] <= staged.partition.cycles * 1.05


def test_too_many_states_are_given_up() -> None:
    evaluator, table = measured()
    p = placer(table, states=3)
    pieces = p.cut_graph(segment_cut(singles(table)), 0, 0.0)
    assert pieces is not None
    assert run_to_end(p.propose_stages(pieces, 0, 0.0), Ears(evaluator)) is None


def test_stages_without_clusters_visit_more_states() -> None:
    evaluator, table = measured()
    p = placer(table)
    pieces = p.cut_graph(segment_cut(singles(table)), 0, 0.0)
    assert pieces is not None
    with_clusters = run_to_end(p.propose_stages(pieces, 0, 0.0), Ears(evaluator))
    without = run_to_end(p.propose_stages(pieces, 0, 0.0, clustered=False), Ears(evaluator))
    assert with_clusters is not None
    assert without is not None
    assert without.clusters == len(pieces.dag)
    assert with_clusters.partition.states < without.partition.states


def annealer(table: SegmentTable, cores: int = 2) -> Annealer:
    return Annealer(table, 0, 0.0, 67.0 * cores, 40)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_walk_ends_at_its_fastest_point(noise: float) -> None:
    _, table = measured()
    wide = table.segmentation(0, width=2)
    assert wide is not None
    for start in (singles(table), wide[0]):
        estimate = annealer(table)
        found = estimate.annealed(start, 8000, np.random.default_rng(0), noise)
        assert find_fault(target_graph(), found, True) is None
        assert found == annealer(table).annealed(start, 8000, np.random.default_rng(0), noise)
        assert all(table.find_cycles(gene) is not None for gene in found), "only what was measured"
        assert estimate.annealed(start, 0, np.random.default_rng(0), noise) == start
        assert noise or estimate.expected(found) <= estimate.expected(start)
        assert noise or estimate.expected(found) <= estimate.expected(wide[0]), "wherever it starts"
    assert estimate.expected((Gene(0, len(target_graph().operators)),)) == np.inf, "never measured"


def test_proposals_are_placed_new_and_follow_the_generator() -> None:
    _, table = measured()
    p = placer(table, annealing=2000, gain=0)
    found = p.proposals(0, 0.0, [], np.random.default_rng(3))
    assert found == p.proposals(0, 0.0, [], np.random.default_rng(3))
    assert len(set(found)) == len(found) >= 1
    for genome in found:
        assert find_fault(target_graph(), genome, True) is None
    expected = [annealer(table).expected(genome) for genome in found]
    assert expected == sorted(expected)
    assert expected[-1] <= 1.05 * expected[0], "what is expected to be slower than that is not measured"
    rest = p.proposals(0, 0.0, [found[0]], np.random.default_rng(3), lambda genome: genome in found[:1])
    assert not set(found[:1]) & set(rest)
    assert placer(table, annealing=2000, gain=0.9).proposals(0, 0.0, [], np.random.default_rng(3)) == [], "it cannot gain so much"


def test_segmentations_on_so_many_cores() -> None:
    _, table = measured()
    for width in (1, 2):
        segmentation = table.segmentation(0, width=width)
        assert segmentation is not None
        assert {len(gene.cores) for gene in segmentation[0]} == {width}
        for gene in segmentation[0]:
            best = table.best(gene.start, gene.stop, 0, width)
            lean = table.lean(gene.start, gene.stop, 0, width)
            assert best is not None
            assert lean is not None
            assert best[0] <= lean[0]
            assert table.moved(lean[1]) <= table.moved(best[1])
    either, narrow, wide = (table.segmentation(0, width=width) for width in (None, 1, 2))
    assert either is not None
    assert narrow is not None
    assert wide is not None
    assert either[1][-1] <= min(narrow[1][-1], wide[1][-1])


def test_segments_beside_each_other() -> None:
    assert runs_in_sequence((Gene(0, 1), Gene(1, 2, 2, cores=(0, 1))))
    assert not runs_in_sequence((Gene(0, 1), Gene(1, 2, cores=(1,))))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_segments_are_proposed_for_so_many_cores(width: int) -> None:
    _, table = measured("inception_block", 4)
    u = target_graph("inception_block", 4)
    segmentation = table.segmentation(0)
    assert segmentation is not None
    moves = {name: move for name, move in MOVES.items() if name != "change_cores"}
    genes = propose_segments(u, table, [segmentation[0]], 40, np.random.default_rng(2), moves, load_config().segments, width)
    assert len(genes) >= 30
    assert {gene.cores for gene in genes} == {tuple(range(width))}
    assert all(decode(u, gene) is not None for gene in genes), "they fit, in more blocks where it takes more"
    assert not any(table.known(gene) for gene in genes)


def searched(*overrides: str, epochs: int = 5) -> tuple[LocalSearch, Local]:
    u = target_graph("inception_block", 4)
    measure = Local(u)
    overrides = ("search.generation=8", "placement.every=2", "placement.longest=1", "placement.gain=0", *overrides)
    return LocalSearch(u, *overrides).steps(measure, epochs), measure


def test_search_places_segments_and_learns_border_savings() -> None:
    search, measure = searched()
    programs = [ask.genome for ask in measure.measured() if ask.kind == "program"]
    runs = [gene for genome in programs for gene in genome if gene.stop - gene.start > 1]
    assert {len(gene.cores) for gene in runs} > {4}, "where nothing is placed, all of them are on all cores"
    assert any(ask.kind == "stage" for ask in measure.measured())
    assert any(job.collector.border is not None and (job.collector.border > 0).any() for job in search.jobs)
    one, _ = searched("use.cores=false")
    mine, theirs = (result.known.population.best(0).cycles[0] for result in (search, one))
    assert mine < theirs


def test_placed_program_is_expected_below_the_sum() -> None:
    search, _ = searched(epochs=3)
    genes = singles(search.known.table)
    placed = tuple(gene._replace(cores=(k % 2,)) for k, gene in enumerate(genes))
    assert np.less(*search.context().expected([placed, genes])).all()


@pytest.mark.parametrize("switch", ["use.placement=false", "use.cores=false"])
def test_switched_off_nothing_is_placed(switch: str) -> None:
    search, measure = searched(switch, epochs=4)
    assert search.context().placer is None
    assert not any(ask.kind == "stage" for ask in measure.measured())
    if switch == "use.cores=false":
        assert {gene.cores for ask in measure.measured() for gene in ask.genome} == {(0,)}


@pytest.mark.parametrize(("machine", "operators", "placing"), [("edge", 2, False), ("edge:cores=2", 2, True), ("edge:cores=2", 1, False)])
def test_one_core_or_operator_has_nothing_to_place(machine: str, operators: int, placing: bool) -> None:
    graph = small_graph("conv_chain") if operators > 1 else lower(product(32, 16, 16))
    u = make_unit(graph, load_machine(machine), DataType.float16)
    assert LocalSearch(u).rules.placing == placing
