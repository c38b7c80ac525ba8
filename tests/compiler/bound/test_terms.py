"""Terms of the bound by hand, and minimum cuts against all choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from compiler.bound.bound import Bound, capacity_bytes, first_data_cycles, last_data_cycles, weight_bytes
from compiler.bound.dependences import needs_of
from compiler.bound.engine_balance import balance_engines, work_worth
from compiler.bound.engine_work import Shared
from compiler.bound.phases import Phases, before_first
from compiler.bound.prefetch import ChannelShare, finished_before, unfinished_weights
from compiler.bound.traffic import FusedGraph, find_excess
from compiler.ir.operators import Conv, Operator, Shuffle
from compiler.pipeline import Compiler
from compiler.space.decode import decode_all
from compiler.space.gene import Gene
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.timing import simulate_levels
from tests.graphs import concat, conv, gated, max_pool, target_graph
from tests.plans import resized

EDGE = load_machine("edge")


def test_a_product_takes_its_cubes_and_its_moves() -> None:
    """49 pixels are 4 rows of cubes, 40 channels 3 blocks of 9 taps, 24 columns 2: 216 cubes, of which VECTOR takes what it can."""
    bound = Bound(target_graph(EDGE, (1, 40, 7, 7), conv("y", "x", (40, 24))))
    work = bound.work
    cube, mte1, fixpipe = work.matrix[0].tolist()
    left, right, out = 49 * 27 * 32, 27 * 2 * 512, 49 * 32 * 4
    assert cube == 4 * 27 * 2
    assert work.starts[0] == pytest.approx(8)
    assert mte1 == pytest.approx(left * (1 / 512 + 8 / 65536) + right * (1 / 256 + 8 / 65536))
    assert fixpipe == pytest.approx(out * (1 / 256 + 8 / 262144))
    vector = 49 * 24 * 360 / 64 * (1 + 6 / 255)
    assert work.on_vector[0] == pytest.approx(vector)
    cells = Shared(*(np.reshape(each[0], (2, 2, 2)) for each in work.cube))  # rows, k, columns, in full blocks and others
    assert cells.cycles[1].sum() == pytest.approx(54 + 8 / 49), "the last row is a fourth of CUBE's steps"
    assert cells.on_vector[1].sum() == pytest.approx(vector / 49)
    assert cells.cycles[0, 1, 1] == pytest.approx(3 * 9 + 8 * 48 / 49 * 9 / 54), "blocks of k with 8 channels, one of columns with 8"
    assert cells.on_vector[0, 1, 1] == pytest.approx(vector * 48 / 49 * 8 / 40 * 8 / 24)
    assert work.fixpipe.on_vector[0] == pytest.approx([vector * 2 / 3, vector / 3])
    deals = [balance_engines(product.cycles[0], product.on_vector[0], 0.0)[0] for product in (work.cube, work.loads, work.fixpipe)]
    waits = first_data_cycles(EDGE, "none") + last_data_cycles(EDGE, "none")
    assert bound.of("none").engines == waits + int(np.ceil(max(deals)))


def test_groups_that_end_within_blocks() -> None:
    """Four groups of 34 channels: 136 columns of a first block of k fill 8.5, and two more of each group are 3 blocks of columns each."""
    cube = Bound(target_graph(EDGE, (1, 136, 16, 16), conv("y", "x", (136, 136), kernel=1, groups=4))).work.matrix[0, 0]
    assert cube == 16 * (8.5 + 2 * 4 * 3)
    cube = Bound(target_graph(EDGE, (1, 128, 16, 16), conv("y", "x", (128, 128), kernel=1, groups=4))).work.matrix[0, 0]
    assert cube == 16 * 8 * 2, "groups of whole blocks"
    cube = Bound(target_graph(EDGE, (1, 64, 16, 16), conv("y", "x", (64, 64), groups=64))).work.matrix[0, 0]
    assert cube == 16 * 4 * 9, "a block of sixteen groups of one channel needs no more than one of one"


@pytest.mark.parametrize("seed", range(20))
def test_no_share_of_a_product_is_worth_less(seed: int) -> None:
    """VECTOR makes some rows of some lanes and columns, in blocks of any channels: CUBE's steps of what is left, both weighted."""
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 2, 4]))
    c_in, c_out, size = int(rng.integers(2, 50)), int(rng.integers(1, 50)), int(rng.integers(2, 8))
    work = Bound(
        target_graph(EDGE, (1, groups * c_in, size, size), conv("y", "x", (groups * c_in, groups * c_out), kernel=1, groups=groups))
    ).work
    needed = np.kron(np.eye(groups, dtype=np.bool_), np.ones((c_in, c_out), np.bool_))
    of_k, of_columns = (rng.permutation(np.arange(count + rng.integers(20)))[:count] // 16 for count in needed.shape)
    if rng.integers(2):
        of_k, of_columns = np.arange(len(of_k)) // 16, np.arange(len(of_columns)) // 16
    for weight in rng.uniform(0, 1, 5):
        least = float(work_worth(work._replace(starts=np.zeros(1)).cube, np.zeros(1), np.array([weight]), Phases.one(1))[0])
        for _ in range(20):
            rows = np.arange(size * size) < rng.choice([0, size * size // 16 * 16, rng.integers(size * size + 1)])
            taken = np.zeros((len(rows), *needed.shape), np.bool_)  # by VECTOR
            taken[~rows] = True
            lanes, columns = (rng.random(count) < rng.choice([0, 0.1, 0.5]) for count in needed.shape)
            taken |= lanes[:, None] | columns
            left = needed & ~taken
            pairs = [left[:, of_k == i][:, :, of_columns == j].any((1, 2)).sum() for i in set(of_k) for j in set(of_columns)]
            vector = (needed & taken).sum() / (128 if c_in <= 64 else 64) * (1 + 6 / 255)
            assert weight * sum(-(-int(count) // 16) for count in pairs) + (1 - weight) * vector >= least - 1e-6


def test_what_two_products_read_is_loaded_once() -> None:
    """Two convolutions of x: an MMAD may have columns of both, so that 64 rows of two blocks of k and 64 of columns are one."""
    u = target_graph(EDGE, (1, 48, 8, 8), conv("a", "x", (48, 32), kernel=1), conv("b", "x", (48, 16), kernel=1), outputs=["a", "b"])
    assert Bound(u).work.starts == pytest.approx([8 * 64 * 6 / 8192, 8 * 64 * 3 / 8192])


def test_complete_inputs_of_a_value_behind_a_mean() -> None:
    u = target_graph(EDGE, (1, 16, 14, 14), *gated(14))
    number = {spec.operator.y: spec.index for spec in u.operators}
    before = before_first(u, needs_of(u))
    names = {y: {u.operators[i].operator.y for i in before[k]} for y, k in number.items()}
    assert names["m"] == set(), "a mean of a channel needs that channel alone"
    assert names["f"] == {"a", "s", "m"}
    assert names["g"] == {"a", "s", "m", "f"}
    assert names["p"] == {"a", "s", "m", "f"}, "a channel of the gate is enough"
    assert names["c"] == {"a", "s", "m", "f", "g"}
    assert names["d"] == names["c"], "nine pixels of 196"


def test_phases_share_no_cycle() -> None:
    """VECTOR works before the gate, CUBE behind it: the bound is their sum, not the larger one."""
    u = target_graph(EDGE, (1, 16, 28, 28), *gated(28, wide=256))
    bound = Bound(u)
    number = {spec.operator.y: spec.index for spec in u.operators}
    first, last = bound.phases.first, bound.phases.last
    assert (first <= last).all()
    assert last[number["s"]] < first[number["c"]]
    silu = 784 * 256 * 2 / 256 * (4 + 4 + 2 * 6 / 255)
    cube = 784 / 16 * 9 * 16 * (16 + 16)
    assert bound.work.vector[number["s"]] == pytest.approx(silu)
    waits = first_data_cycles(EDGE, "none") + last_data_cycles(EDGE, "none")
    assert silu + 0.9 * cube < bound.of("none").engines - waits < silu + 1.05 * cube
    batch = Bound(target_graph(EDGE, (2, 16, 28, 28), *gated(28, wide=256)))
    assert batch.phases.phases == 1, "an image does not wait for the other one"


def test_work_is_worth_least_where_it_may_float() -> None:
    """A product of 8 cycles that may be in either phase: 4 under (1/2, 1/2), nothing where VECTOR alone counts."""
    phases = Phases(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    product, vector = Shared(np.array([[8.0], [8.0], [0.0]]), np.array([[80.0], [80.0], [0.0]])), np.array([0.0, 0.0, 30.0])
    assert work_worth(product, vector, np.array([0.5, 0.5]), phases).tolist() == [4.0, 4.0, 15.0]
    assert work_worth(product, vector, np.array([0.5, 0.0]), phases).tolist() == [4.0, 0.0, 30.0]


def test_weights_wait_for_vector_too() -> None:
    """SiLU comes before all weights of the last product: 17 MB, more than fits on chip, behind 50 k cycles of VECTOR."""
    silu = gated(112)[1]
    ops: list[Operator] = [conv("a", "x", (16, 64)), silu, max_pool("q", "s", 112, 112)]
    ops += [conv("f", "q", (64, 4096), kernel=1), conv("h", "f", (4096, 2048), kernel=1)]
    bound = Bound(target_graph(EDGE, (1, 16, 112, 112), *ops))
    late = 4096 * 2048 * 2 - weight_bytes(bound.target_graph, "none")
    silu_cycles = bound.work.vector[1]
    assert silu_cycles > 50_000
    assert bound.of("none").term == "prefetch"
    assert bound.of("none").cycles > silu_cycles + late / EDGE.ddr.deliverable


def test_inputs_come_in_blocks() -> None:
    """Three channels are an image of four lanes, twenty two planes of sixteen, and of float32 three are one of eight."""
    for channels, dtype, bytes_of_a_pixel in ((3, "float16", 8), (20, "float16", 64), (3, "float32", 32)):
        u = target_graph(EDGE, (1, channels, 8, 8), conv("y", "x", (channels, 16)), dtype=dtype)
        assert Bound(u).once.inputs == 64 * bytes_of_a_pixel


def test_a_deal_of_products() -> None:
    """Cheap ones go to VECTOR first: of 10 and 10 cycles that take it 20 and 50, 8 go to the first: 20 - 10 z = 20 z of the first."""
    cycles, weight = balance_engines(np.array([10.0, 10.0]), np.array([20.0, 50.0]), 0.0)
    assert cycles == pytest.approx(20 - 10 * 2 / 3)
    assert weight == pytest.approx(20 / 30)
    assert balance_engines(np.array([10.0]), np.array([20.0]), 15.0) == (15.0, 0.0), "VECTOR is the busier one as it is"


def test_every_weighting_is_below_the_best_deal() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        c, v, own = rng.uniform(1, 9, 6), rng.uniform(1, 90, 6), float(rng.uniform(0, 20))
        best, weight = balance_engines(c, v, own)
        assert best == pytest.approx(np.minimum(weight * c, (1 - weight) * v).sum() + (1 - weight) * own), "strong duality"
        z = rng.uniform(0, 1, 6)
        assert best <= max(((1 - z) * c).sum(), own + (z * v).sum()) + 1e-9


def test_what_is_needed_of_a_tensor() -> None:
    """A stride of 2 leaves three quarters of the pixels out, a slice most channels; a pool of 3 at stride 2 misses the last row of 8."""
    wide = conv("a", "x", (64, 32), kernel=1, stride=2)
    needs = needs_of(target_graph(EDGE, (1, 64, 8, 8), wide))
    assert needs.given[0].touched_bytes == 64 * 16 * 2
    part = Shuffle("part", "x", "part", tuple(range(16)))
    needs = needs_of(target_graph(EDGE, (1, 64, 8, 8), part, conv("a", "part", (16, 16), kernel=1)))
    assert needs.given[0].touched_bytes == 16 * 64 * 2
    needs = needs_of(target_graph(EDGE, (1, 16, 8, 8), max_pool("a", "x", 3, 2), conv("y", "a", (16, 16), kernel=1)))
    assert needs.given[0].touched_bytes == 16 * 49 * 2
    assert needs.produced[0].needed_bytes == 16 * 9 * 2


def test_outputs_and_concatenations_count_once() -> None:
    u = target_graph(EDGE, (1, 16, 8, 8), conv("a", "x", (16, 32)), conv("b", "x", (16, 32)), concat("c", "a", "b"), outputs=["c", "a"])
    assert Bound(u).once.outputs == 64 * 64 * 2


def chain(*channels: int, size: int = 14) -> list[Conv]:
    return [conv(f"t{i}", f"t{i - 1}" if i else "x", pair, kernel=1) for i, pair in enumerate(itertools.pairwise(channels))]


def finished(u: TargetGraph) -> list[dict[frozenset[int], float]]:
    """Of every operator: what is finished as soon as a weight is, and of which part of them."""
    return [{share.before: float(share.part) for share in shares} for shares in finished_before(u, needs_of(u))]


def test_two_products_back_everything_is_finished() -> None:
    u = target_graph(EDGE, (1, 64, 14, 14), *chain(64, 64, 64, 64, 64))
    assert finished(u) == [{before: 1.0} for before in (frozenset(), frozenset(), frozenset({0}), frozenset({0, 1}))]


def test_vector_takes_a_plane_at_a_time() -> None:
    """Depthwise, 40 channels are three planes, of which the last one has eight lanes for nothing; products of all channels fill theirs."""
    found = work_of_vector(conv("y", "x", (40, 40), groups=40), 40)
    assert found == pytest.approx(64 * 9 * 3 / 8 * (1 + 6 / 255))
    assert work_of_vector(conv("y", "x", (3, 40)), 3) == pytest.approx(64 * 27 * 40 / 128 * (1 + 6 / 255))


def work_of_vector(op: Operator, channels: int) -> float:
    return float(Bound(target_graph(EDGE, (1, channels, 8, 8), op)).work.on_vector[0])


def test_concatenated_channels_wait_for_their_own_parts() -> None:
    """y reads 32 channels of b, which is behind a, and 16 of d, which is behind nothing; and so it is through a pool."""
    ops = [conv("a", "x", (16, 16)), conv("b", "a", (16, 32)), conv("d", "x", (16, 16)), concat("c", "b", "d")]
    pooled = [max_pool("p", "c", 2, 2), conv("y", "p", (48, 16)), conv("z", "y", (16, 16))]
    u = target_graph(EDGE, (1, 16, 8, 8), *ops, *pooled)
    number = {spec.operator.y: spec.index for spec in u.operators}
    of_y, of_z = finished(u)[number["y"]], finished(u)[number["z"]]
    assert of_y == {frozenset({number["a"]}): pytest.approx(2 / 3), frozenset(): pytest.approx(1 / 3)}
    assert of_z == {frozenset(number[y] for y in "abdp"): 1.0}, "a channel of y needs all channels of all parts"


def test_residual_channel_needs_its_own_channel_alone() -> None:
    """The shortcut d is a product of its own: a channel of y may be there when one of d is, so d is not finished before z begins."""
    ops = [conv("a", "x", (16, 16)), conv("d", "x", (16, 32), kernel=1), conv("y", "a", (16, 32), residual="d"), conv("z", "y", (32, 16))]
    u = target_graph(EDGE, (1, 16, 8, 8), *ops)
    number = {spec.operator.y: spec.index for spec in u.operators}
    assert finished(u)[number["z"]] == {frozenset({number["a"]}): 1.0}
    fixpipe = Bound(u).work.matrix[:, 2]
    assert fixpipe[number["d"]] == 0, "its sums may stay in L0C until those of y are added"
    assert fixpipe[number["a"]] > 0
    assert fixpipe[number["y"]] > 0


def test_weights_that_come_late() -> None:
    """Work first, weights last: after the work of the first operators no weight of the last two is finished."""
    shares = [(ChannelShare(1.0, frozenset(before)),) for before in ((), (), (0,), (0, 1))]
    work, weights = np.array([100.0, 100.0, 1.0, 1.0]), np.array([1.0, 1.0, 500.0, 500.0])
    found = unfinished_weights(work, work, weights, shares)
    left = dict(zip(found.work.tolist(), found.weights_left.tolist(), strict=True))
    assert left[100.0] == pytest.approx(1002 - 1)  # either of the first two
    assert left[200.0] == pytest.approx(1002 - 1 - 500 - 99 / 100)
    assert left[202.0] == 0
    found = unfinished_weights(work, np.zeros(4), weights, shares)
    assert found.weights_left.tolist() == [1002.0, 1000.0, 500.0, 0.0], "parts that cost nothing are finished as soon as they may be"
    halves = [*shares[:3], (ChannelShare(0.5, frozenset()), ChannelShare(0.5, frozenset({0, 1})))]
    found = unfinished_weights(work, work, weights, halves)
    left = dict(zip(found.work.tolist(), found.weights_left.tolist(), strict=True))
    assert left[100.0] == pytest.approx(1002 - 250 - 99.5 / 100), "half of the last one's waits for nothing, and costs half a cycle"


def test_prefetch_is_largest_where_work_precedes_weights() -> None:
    """Two convolutions of work, then products with 18 MB of weights for one pixel, of which `edge` holds 1.6 MB."""
    ops = [conv("a", "x", (64, 256)), conv("b", "a", (256, 256)), max_pool("p", "b", 56, 56)]
    ops += [conv("f", "p", (256, 4096), kernel=1), conv("g", "f", (4096, 2048), kernel=1)]  # type: ignore[list-item]
    u = target_graph(EDGE, (1, 64, 56, 56), *ops)
    bound = Bound(u)
    terms = bound.of("none")
    assert terms.term == "prefetch"
    late = (256 * 4096 + 4096 * 2048) * 2 - weight_bytes(u, "none")
    work = 196 * 4 * 9 * 16  # of the first convolution, of which CUBE has most
    assert terms.cycles > 0.9 * work + late / 64
    assert capacity_bytes(u, "none") == (1024 + 64 + 64 + 256 // 2 + 256) * 1024
    assert weight_bytes(u, "none") == (1024 + 64 + 256) * 1024


def cheapest(fused: FusedGraph, start: int, last: int) -> int:
    """The best choice by trying all: operators made again, results held where something made again reads them."""
    others = list(range(start, last))
    best = fused.held[last]
    for chosen in itertools.product((False, True), repeat=len(others)):
        again = {last} | {k for k, yes in zip(others, chosen, strict=True) if yes}
        held = {maker for k in again for maker in fused.makers[k] if maker >= start} - again
        best = min(best, sum(fused.weights[k] for k in again - {last}) + sum(fused.held[k] for k in held))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_excess_is_of_the_best_windows(seed: int) -> None:
    """Against all sets of windows, each with all choices of what is held."""
    rng = np.random.default_rng(seed)
    count, capacity = 6, int(rng.integers(1, 40))
    held, weights = rng.integers(1, 99, (2, count)).tolist()
    makers = [sorted(rng.choice(k, min(k, int(rng.integers(1, 3))), replace=False).tolist()) if k else [] for k in range(count)]
    ends = [bool(rng.integers(4)) for _ in range(count)]
    fused = FusedGraph(held, [2 * size for size in held], weights, makers, ends)
    twice = fused._replace(held=fused.twice)
    gain = {
        (a, b): max(0, cheapest(fused, a, b) - capacity, cheapest(twice, a, b) - 2 * capacity) if ends[b] else 0
        for a in range(count) for b in range(a, count)
    }  # fmt: skip
    best = [0]
    for b in range(count):
        best.append(max(best[b], *(best[a] + gain[a, b] for a in range(b + 1))))
    assert sum(window.bytes for window in find_excess(fused, capacity)) == best[-1]


def test_what_does_not_fit_moves_again() -> None:
    """Four products of 256 channels at 56 x 56 with 128 KiB of weights each: 1.6 MB tensors, and weights that 160 KiB do not hold."""
    little = resized(EDGE, L1=65536, UB=65536, L0A=8192, L0B=8192, L0C=32768)
    u = target_graph(little, (1, 256, 56, 56), *chain(256, 256, 256, 256, 256, size=56))
    bound = Bound(u)
    capacity = capacity_bytes(u, "none")
    assert capacity == 65536 * 2 + 8192 * 2 + 16384
    assert [(window.start, window.stop, window.bytes) for window in bound.windows(capacity)] == [(0, 4, 3 * 131072 - capacity)]
    assert bound.of("none").traffic_bytes == sum(bound.once) + 3 * 131072 - capacity


def test_the_bound_is_reached() -> None:
    """A product that writes much and reads little is nowhere near any other limit: its plan in blocks is within 3%."""
    u = target_graph(EDGE, (1, 32, 56, 56), conv("y", "x", (32, 512), kernel=1))
    plan = decode_all(u, (Gene(0, 1, 14),))
    program = Compiler(u).compile(plan)  # type: ignore[arg-type]
    timing = simulate_levels(program, EDGE, ["severe"])["severe"]  # type: ignore[arg-type]
    assert 1 <= timing.cycles / Bound(u).of("severe").cycles < 1.03
