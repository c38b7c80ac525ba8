"""What jobs of a search do: nothing twice, every kind of proposal, and on after crashes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.plan.plan import Infeasible
from compiler.planner.tweaks import CHANGES
from compiler.space.gene import block_counts, find_fault
from compiler.space.initial import single_operators
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import InfeasibleError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import make_case
from tests.compiler.segment.test_grids import machine_of, product
from tests.models import Builder, small_graph
from tests.plans import resized
from tests.tuner.search.searching import Local, LocalSearch
from tuner.log.record import RESULTS
from tuner.measure.request import Measurement, Request
from tuner.search.epoch import EVOLVING
from tuner.search.overlap_saving import border_of


@lru_cache(maxsize=16)
def target_graph(name: str) -> TargetGraph:
    return make_unit(small_graph(name), load_machine("tiny"), DataType.float16)


def test_nothing_is_measured_twice() -> None:
    u = target_graph("inception_block")
    measure = Local(u)
    search = LocalSearch(u, "search.lag=0").steps(measure, 8)
    requests = measure.measured()
    programs = [request.genome for request in requests if request.kind == "program"]
    assert len(programs) > 20
    assert len(set(programs)) == len(programs)
    keys = [search.known.key(request.genome[0]) for request in requests if request.kind == "segment"]
    assert len(set(keys)) == len(keys)
    for genome in programs:
        assert find_fault(u, genome, True) is None
    assert programs[0] == single_operators(u), "layer by layer comes first"


def test_the_first_segments_are_dealt_to_the_jobs() -> None:
    u = target_graph("residual_block")
    shares = []
    for lag in (0, 6):
        measure = Local(u)
        search = LocalSearch(u, f"search.lag={lag}", "use.segmentations=false").steps(measure, 2)
        shares.append({search.known.key(request.genome[0]) for request in measure.measured() if request.kind == "segment"})
        counts = [len(job.collector.segments) for job in search.jobs[1:]]
        assert max(counts) - min(counts) <= 2, "no job has more to do than another"
    assert shares[0] == shares[1]


def test_jobs_do_not_measure_each_others_segments() -> None:
    """They look near the same segmentations, and hear of each other an epoch late: undealt, a fifth was measured twice.

    In the first epoch one measures what it predicts, and what that is made of is nobody's; nor are segments of children.
    """
    u = target_graph("inception_block")
    measure = Local(u)
    search = LocalSearch(u, "search.lag=6", "search.proposed=1.0", "search.changes=0").steps(measure, 7)
    shares: list[set[object]] = [set(), set(), set()]
    for job in search.jobs:
        if job.epoch >= EVOLVING:
            shares[job.shard] |= {search.known.key(gene) for gene in job.collector.segments}
    assert sum(map(len, shares)) == len(set.union(*shares))
    assert min(map(len, shares)) > 0.7 * max(map(len, shares)), "no job has much less to look for"


def test_segments_of_children_are_measured_alone() -> None:
    """So that segmentations have them."""
    search = LocalSearch(target_graph("inception_block"), "search.lag=0").steps(Local(target_graph("inception_block")), 6)
    evolved = [genome for job in search.jobs if job.epoch >= EVOLVING for genome in job.collector.programs]
    assert len(evolved) > 8
    assert all(search.known.table.known(gene) for genome in evolved for gene in genome)


def test_model_of_one_operator_occupies_every_shard() -> None:
    b = Builder(np.random.default_rng(0), (1, 16, 14, 14))
    u = make_unit(lower(b.model(b.conv("x", 32, (3, 3), pads=(1, 1, 1, 1)))), load_machine("tiny"), DataType.float16)
    search = LocalSearch(u, "search.lag=6").steps(Local(u), 4)
    shares = [[len(job.collector.segments) for job in search.jobs if job.shard == i and job.epoch >= EVOLVING] for i in range(3)]
    assert min(map(sum, shares)) > 5


def test_first_evolving_epoch_hears_every_kind_of_proposal() -> None:
    u = target_graph("residual_block")
    measure = Local(u)
    search = LocalSearch(u, "search.generation=16").steps(measure, 3)
    singles = search.known.table.singles()
    programs = [request.genome for request in measure.measured() if request.kind == "program"]
    assert any(all(gene.stop - gene.start == 1 for gene in genome) for genome in programs[1:])
    assert singles is not None
    assert any(len(genome) < len(singles) for genome in programs)


def test_children_begin_with_the_baseline() -> None:
    """Without segmentations there is no other program."""
    u = target_graph("residual_block")
    search = LocalSearch(u, "use.segmentations=false", "search.lag=6", "search.generation=2").steps(Local(u), 3)
    counts = [len(job.collector.programs) for job in search.jobs[4:]]
    assert all(0 < count <= 2 for count in counts)


def test_each_job_measures_as_many_segments() -> None:
    u = target_graph("residual_block")
    measure = Local(u)
    search = LocalSearch(u, "search.lag=6", "search.proposed=1.0").steps(measure, 3)
    share = 16 * search.rules.several
    assert search.rules.several == 2
    share += -(-share // 2)  # on all cores, and on one
    for job in search.jobs[4:]:
        assert 0.8 * share <= len(job.collector.segments) <= share + len(CHANGES), "less where what it looked at looks like what is known"
    for job in search.jobs[4:]:
        assert sum(len(gene.cores) == 2 for gene in job.collector.segments) > 0.6 * share


def test_border_is_learnt_from_programs_and_their_segments() -> None:
    u = target_graph("conv_chain")
    search = LocalSearch(u)
    genome = single_operators(u)
    assert not isinstance(genome, Infeasible)
    context = search.context(epoch=2)
    for gene in genome:
        context.table.add(gene, np.array([100, 200, 300]))
    alone = context.table.sum_cycles(genome)
    assert alone is not None
    borders = len(genome) - 1
    cycles: NDArray[np.int64] = (alone - borders * np.array([10, 20, -5])).astype(np.int64)
    values = np.zeros((3, len(RESULTS)), np.int64)
    values[:, RESULTS.index("cycles")] = cycles
    border = border_of(context.table, [Request("program", genome)], [Measurement("ok", values=values)])
    assert border is not None
    search.known.add_border(border)
    assert search.known.border.tolist() == [5.0, 10.0, 0.0], "half of what is new; a border never costs"
    assert context.expected([genome])[0].tolist() == (alone - borders * search.known.border).tolist()


def test_operator_that_needs_many_blocks_is_explored() -> None:
    """64 rows of 8 KiB: only a row at a time, which is not among the block counts that every operator is tried in."""
    b = Builder(np.random.default_rng(0), (1, 16, 64, 256))
    u = make_unit(lower(b.model(b.relu(b.conv("x", 16)))), load_machine("tiny"), DataType.float16)
    genome = single_operators(u)
    assert not isinstance(genome, Infeasible)
    assert max(gene.blocks for gene in genome) > block_counts(u, 0, 1)[11]
    search = LocalSearch(u).steps(Local(u), 2)
    assert search.known.table.segmentation(0) is not None
    assert search.known.table.singles() is not None


class Deaf(Local):
    """No program can be measured."""

    def measure(self, request: Request) -> Measurement:
        if request.kind == "program":
            return Measurement("infeasible", "segment 0: too large", "t")
        return super().measure(request)


def test_unfit_model_is_infeasible_layer_by_layer() -> None:
    small = make_unit(small_graph("conv_chain"), resized(load_machine("tiny"), L1=1024), DataType.float16)
    with pytest.raises(InfeasibleError, match=r"tiny: .*1,024 B of L1"):
        LocalSearch(small).step(Local(small))
    u = target_graph("conv_chain")
    with pytest.raises(InfeasibleError, match="tiny: layer by layer: segment 0: too large"):
        LocalSearch(u).step(Deaf(u))


def test_workers_that_crash_do_not_end_a_search() -> None:
    u = target_graph("residual_block")

    class Crashing(Local):
        def measure(self, request: Request) -> Measurement:
            if len(request.genome) == 1 and request.genome[0].blocks == 2:
                return self.evaluator.failed(request, "crash", "RuntimeError: two blocks")
            return super().measure(request)

    search = LocalSearch(u).steps(Crashing(u), 4)
    members = search.known.population.members
    assert members
    assert all(gene.blocks != 2 for m in members for gene in m.genome if gene.stop - gene.start > 1)


def test_an_operator_too_long_for_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search begins with it on all cores; where it is too long for them as well, there is no search."""
    u = make_case(product(960, 96, 160), machine_of(4, False), DataType.float16).target_graph
    for capacity, cores in ((100, 1), (70, 4)):  # 60 instructions on one core, 31 on each of four, with room for more
        monkeypatch.setattr("compiler.codegen.lower_segment.CAPACITY", capacity)
        search = LocalSearch(u, "search.lag=0").steps(Local(u), 1)
        assert {len(member.genome[0].cores) for member in search.known.population.members} == {cores}
    monkeypatch.setattr("compiler.codegen.lower_segment.CAPACITY", 20)
    with pytest.raises(InfeasibleError, match="needs more than 20 instructions"):
        LocalSearch(u, "search.lag=0").steps(Local(u), 1)
