"""Blocks of small segments, every row worked out on paper."""

from __future__ import annotations

from typing import Any

from compiler.ir.operators import MatMul, Pool
from compiler.segment.blocks import Ints, cut_blocks, operand_rows, rows_needed, share_rows
from compiler.segment.operator_run import Load
from simulator.npu.machine_file import load_machine
from tests.graphs import concat, conv, max_pool, target_graph

EDGE = load_machine("edge")
SHAPE = (1, 16, 8, 8)


def rows(of: Ints) -> tuple[Any, ...]:
    """An array of rows as tuples."""
    return tuple(map(rows, of)) if of.ndim > 1 else tuple(of.tolist())


def test_rows_are_shared_evenly() -> None:
    assert [share_rows(0, 10, t, 3) for t in range(3)] == [(0, 3), (3, 6), (6, 10)]
    assert [share_rows(4, 14, t, 3) for t in range(3)] == [(4, 7), (7, 10), (10, 14)]
    assert [sum(1 for _ in range(*share_rows(0, 2, t, 4))) for t in range(4)] == [0, 1, 0, 1]


def test_halo_of_two_convolutions() -> None:
    """b needs one row more than it makes on either side, and so does a."""
    u = target_graph(EDGE, SHAPE, conv("a", "x", (16, 16)), conv("b", "a", (16, 16)))
    blocks = cut_blocks(u, 0, 2, 2)
    assert rows(blocks.computed) == (((0, 5), (3, 8)), ((0, 4), (4, 8)))
    assert rows(blocks.ddr_rows) == (((0, 0), (0, 0)), ((0, 4), (4, 8)))  # a never leaves
    assert blocks.inside == (True, False)
    x, a = (u.operators[0].reads[0].storage, u.operators[0].y.storage)
    assert rows(blocks.allocations[x].rows) == ((0, 6), (2, 8))
    assert rows(blocks.allocations[a].rows) == ((0, 5), (3, 8))
    assert (blocks.allocations[x].produced, blocks.allocations[a].produced) == (False, True)
    assert blocks.loads == (Load(x, 0, 1, 0),)
    assert set(blocks.allocations) == {x, a}  # b goes straight to DDR


def test_stride_and_pool() -> None:
    """Pool rows [2, 4) of 4 need convolution rows [4, 8), and these need input rows [2*4-1, 2*7-1+3) = [7, 16)."""
    u = target_graph(EDGE, (1, 16, 16, 16), conv("a", "x", (16, 16), stride=2), max_pool("p", "a", 2, 2))
    blocks = cut_blocks(u, 0, 2, 2)
    assert rows(blocks.computed) == (((0, 4), (4, 8)), ((0, 2), (2, 4)))
    assert rows(blocks.allocations[u.operators[0].reads[0].storage].rows) == ((0, 8), (7, 16))


def test_residual_branch_takes_the_hull() -> None:
    """x is read by a with two rows of halo, and by b as residual with none: the hull is a's."""
    u = target_graph(EDGE, SHAPE, conv("a", "x", (16, 16)), conv("b", "a", (16, 16), residual="x"))
    blocks = cut_blocks(u, 0, 2, 4)
    assert rows(blocks.computed[0]) == ((0, 3), (1, 5), (3, 7), (5, 8))
    x = u.operators[0].reads[0].storage
    assert rows(blocks.allocations[x].rows) == ((0, 4), (0, 6), (2, 8), (4, 8))
    assert blocks.allocations[x].death == 1  # until b has added it
    assert len(blocks.loads) == 1


def test_output_that_is_read_is_stored_without_halo() -> None:
    u = target_graph(EDGE, SHAPE, conv("a", "x", (16, 16)), conv("b", "a", (16, 16)), outputs=["a", "b"])
    blocks = cut_blocks(u, 0, 2, 2)
    assert rows(blocks.computed[0]) == ((0, 5), (3, 8))
    assert rows(blocks.ddr_rows[0]) == ((0, 4), (4, 8))


def test_concat_partly_loaded() -> None:
    """a and c are made before the segment, b inside it: two runs of planes are loaded around b's."""
    operators = [
        conv("a", "x", (16, 16)),
        conv("c", "x", (16, 32)),
        conv("b", "x", (16, 16)),
        concat("j", "a", "b", "c"),
        conv("y", "j", (64, 16)),
    ]
    u = target_graph(EDGE, SHAPE, *operators)
    blocks = cut_blocks(u, 2, 4, 2)
    joined = u.operators[0].y.storage
    x = u.operators[0].reads[0].storage
    assert [k.y.plane for k in u.operators[:3]] == [0, 2, 1]
    assert blocks.loads == (Load(x, 0, 1, 0), Load(joined, 0, 1, 1), Load(joined, 2, 2, 1))
    staged = blocks.allocations[joined]
    assert (staged.plane, staged.planes, staged.produced) == (0, 4, True)
    assert rows(staged.rows) == ((0, 5), (3, 8))
    assert rows(blocks.computed[0]) == ((0, 5), (3, 8))


def test_more_blocks_than_rows() -> None:
    """Every row is made once, by some block; the others are empty."""
    u = target_graph(EDGE, SHAPE, conv("a", "x", (16, 16), stride=2), conv("b", "a", (16, 16), 1))
    blocks = cut_blocks(u, 0, 2, 7)
    assert [row for own in rows(blocks.ddr_rows[1]) for row in range(*own)] == [0, 1, 2, 3]
    assert sum(start == stop for start, stop in rows(blocks.ddr_rows[1])) == 3


def test_rows_that_nobody_reads_are_not_made() -> None:
    """c takes rows [2, 5) of b, and these need rows [1, 6) of a; alone or together, nothing else is computed or stored."""
    last = Pool("c", "b", "c", "max", (1, 1), pads=(-2, 0, -3, 0))
    u = target_graph(EDGE, SHAPE, conv("a", "x", (16, 16)), conv("b", "a", (16, 16)), last)
    assert rows_needed(u) == ((1, 6), (2, 5), (0, 3))
    assert operand_rows(u, 2) == ((2, 5),)
    assert rows(cut_blocks(u, 0, 3, 1).computed) == (((1, 6),), ((2, 5),), ((0, 3),))
    alone = cut_blocks(u, 0, 1, 2)
    assert rows(alone.ddr_rows) == rows(alone.computed) == (((1, 3), (3, 6)),)
    assert rows(alone.allocations[u.operators[0].reads[0].storage].rows) == ((0, 4), (2, 7))


def test_right_operand_is_whole_in_every_block() -> None:
    """Scores of rows of q need all of k, whether k is loaded or made here: once, with the first block, in a ring of all its rows."""
    product = MatMul("s", "q", "k", "s", 1, True)
    u = target_graph(EDGE, SHAPE, conv("q", "x", (16, 16), 1), conv("k", "x", (16, 16), 1), product)
    alone = cut_blocks(u, 2, 3, 4)
    k = alone.allocations[u.operators[2].reads[1].storage]
    assert rows(k.rows) == ((0, 8),) * 4
    assert rows(k.fresh) == ((0, 8), (0, 0), (0, 0), (0, 0))
    assert (k.cached, k.high(2, 1)) == (True, 8)
    assert operand_rows(u, 2) == ((0, 8), (0, 8))
    together = cut_blocks(u, 0, 3, 4)
    assert rows(together.computed[1]) == ((0, 8), (0, 0), (0, 0), (0, 0))
    assert rows(together.computed[0]) == rows(together.computed[2]) == ((0, 2), (2, 4), (4, 6), (6, 8))
