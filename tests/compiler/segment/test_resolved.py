"""A plan's segment on a unit: shares that are all of the work and nothing twice, and everybody who asks is told the same."""

from __future__ import annotations

from itertools import product

import pytest

from compiler.codegen.lower_segment import Records
from compiler.cost.features import raw_features
from compiler.plan.plan import Infeasible, SegmentPlan, VectorTiling
from compiler.segment.segment import Segment, largest_strip
from compiler.space.decode import decode
from compiler.space.gene import Gene, outline
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Engine
from tests.graphs import conv, max_pool, target_graph
from tests.lowered import lower_segment
from tests.plans import with_cores

FOUR = with_cores(load_machine("edge"), 4)


@pytest.fixture(scope="module")
def chain() -> TargetGraph:
    return target_graph(FOUR, (1, 64, 24, 24), conv("a", "x", (64, 64), 3), max_pool("p", "a", 3, 1), conv("b", "p", (64, 64), 1))


def segment(u: TargetGraph, gene: Gene) -> Segment:
    plan = decode(u, gene)
    assert plan is not None
    found = Segment.of(u, plan, gene.start)
    assert isinstance(found, Segment), found
    return found


def rows_and_columns(u: TargetGraph, found: Segment, core: int) -> set[tuple[int, int, int]]:
    """(row, block of a row, plane) of the last operator's result that a core hands out."""
    out, k = set[tuple[int, int, int]](), found.outline.stop - found.outline.start - 1
    share = found.share(core)
    for strip in share.strips:
        spec = strip.target_graph.operators[found.outline.stop - 1]
        first, count = (0, spec.out_w) if spec.strip is None else (spec.strip.first_owned, spec.strip.owned)
        for t in share.iterations:
            start, stop = strip.blocks.ddr_rows[k, t % strip.blocks.count]
            planes = range(spec.y.plane, spec.y.plane + spec.y.planes)
            mine = set(product(range(start, stop), range(first, first + count), planes))
            assert not out & mine, "nothing twice"
            out |= mine
    return out


def whole(u: TargetGraph, k: int) -> int:
    """Blocks of an operator's result."""
    spec = u.operators[k]
    return spec.out_h * spec.out_w * spec.y.planes


@pytest.mark.parametrize("how", [{}, {"columns": 3}, {"cores": (0, 1, 2, 3)}, {"cores": (2, 0, 1), "columns": 2}])
def test_shares_cover_the_work_exactly_once(chain: TargetGraph, how: dict[str, object]) -> None:
    found = segment(chain, Gene(0, 3, blocks=5)._replace(**how))
    every = [rows_and_columns(chain, found, core) for core in range(len(found.plan.cores))]
    assert sum(map(len, every)) == len(set().union(*every)) == whole(chain, 2)
    assert all(every), "every core has some"


def test_cores_that_split_channels_have_a_part_each(chain: TargetGraph) -> None:
    found = segment(chain, Gene(0, 1, blocks=2, cores=(0, 1, 2, 3), split="channels"))
    assert len(found.parts) == 4
    every = [rows_and_columns(chain, found, core) for core in range(4)]
    assert [len(mine) for mine in every] == [whole(chain, 0) // 4] * 4
    assert len(set().union(*every)) == whole(chain, 0)
    assert found.largest_index == 0, "the first of equals"


@pytest.mark.parametrize("how", [{}, {"columns": 3}, {"cores": (0, 1), "cached": -1}, {"cores": (0, 1), "split": "channels", "stop": 1}])
def test_a_gene_is_divided_as_its_plan_is(chain: TargetGraph, how: dict[str, object]) -> None:
    gene = Gene(0, 2, blocks=4)._replace(**how)
    found = segment(chain, gene)
    assert outline(chain, gene) == found.outline
    mine, theirs = largest_strip(chain, outline(chain, gene)), found.widest()
    assert not isinstance(mine, Infeasible)
    assert mine.blocks is theirs.blocks, "one object for what is the same"


def test_memory_is_equal_in_every_strip_and_share(chain: TargetGraph) -> None:
    found = segment(chain, Gene(0, 3, blocks=4, columns=2, cores=(0, 1)))
    first, second = (found.memory(found.share(core)) for core in range(2))
    assert not isinstance(first, Infeasible)
    assert first == second
    low, high = first, found.memory(found.share(0), flip=True)
    assert not isinstance(high, Infeasible)
    assert low.peak_bytes == high.peak_bytes
    assert low.l1 != high.l1


def test_l1_holds_all_that_ddr_does_not_give(chain: TargetGraph) -> None:
    found = segment(chain, Gene(0, 2, blocks=2))
    (strip,) = found.strips(0)
    assert strip.residence(0) == ((True, False),), "loaded for the convolution"
    assert strip.residence(1) == ((True, True),), "made by it"
    records = lower_segment(chain, found.plan, 0)
    assert isinstance(records, Records)
    read = records.code[(records.code[:, isa.OP] == Op.COPY) & (records.code[:, isa.ENGINE] == Engine.MTE2)]
    assert set(read[:, isa.TAG].tolist()) == {0}, "nothing is loaded for the pooling"


def test_indivisible_segment_is_refused_once() -> None:
    tiling = VectorTiling(tile_planes=1, tile_rows=1)
    thin = target_graph(FOUR, (1, 16, 8, 8), max_pool("p", "x", 2, 1))
    plan = SegmentPlan(operators=("p",), tilings=(tiling,))
    assert isinstance(Segment.of(thin, plan, 0), Segment)
    for how, why in (
        ({"columns": 9}, "9 strips of 7 columns: expected as many columns as strips, or more"),
        ({"cores": (0, 1, 2), "split": "channels"}, "1 runs of channels that can be made apart, for 3 parts"),
    ):
        refused = plan.model_copy(update=how)
        found = Segment.of(thin, refused, 0)
        assert found == Infeasible("segment p", f"p: {why}")
        assert lower_segment(thin, refused, 0) == found
        with pytest.raises(ValueError, match=why):
            raw_features(thin, refused, 0)
