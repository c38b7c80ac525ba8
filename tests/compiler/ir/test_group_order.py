"""Channels between grouped convolutions: blocks that belong to few groups on either side, and the host's own as they were."""

from __future__ import annotations

import numpy as np

from compiler.ir.layout import Layout, assign
from compiler.ir.operators import Operator, Shuffle
from simulator.npu.parts import DataType
from tests.graphs import conv, graph


def between(channels: int, outputs: list[str] | None = None, inputs: int = 0) -> Layout:
    """A convolution in 4 groups, of as many inputs unless it is said, a shuffle, a depthwise one, another in 4 groups."""
    inputs = inputs or channels
    order = np.arange(channels).reshape(4, -1).T.reshape(-1)
    operators: list[Operator] = [
        conv("a", "x", (inputs, channels), 1, groups=4),
        Shuffle("s", "a", "s", tuple(order.tolist())),
        conv("d", "s", (channels, channels), 3, groups=channels),
        conv("y", "d", (channels, channels), 1, groups=4),
    ]
    return assign(graph((1, inputs, 6, 5), operators, outputs), DataType.float16)


def shared(layout: Layout, *names: str) -> int:
    """Groups of 4 that blocks of tensors belong to, all added up."""
    found = 0
    for name in names:
        lanes = np.array(layout.placements[name].lanes)
        groups = np.arange(len(lanes)) * 4 // len(lanes)
        found += sum(len(set(groups[lanes // 16 == block].tolist())) for block in range(lanes.max() // 16 + 1))
    return found


def test_blocks_belong_to_few_groups() -> None:
    """Of 272 channels 17 have both groups in common: 16 blocks of one each on either side, and one of the rest that has all."""
    layout = between(272)
    assert shared(layout, "a", "d") == 2 * (16 + 4)
    assert sorted(layout.placements["a"].lanes) == list(range(272))
    assert shared(between(272, ["a", "y"]), "a", "d") > 50  # what the host reads is in order


def test_half_blocks_of_one_group_are_adjacent() -> None:
    """Of 136 channels 8 or 9 have both groups in common: 8 blocks of one group there and two here, and one of the rest that has all."""
    layout = between(136)
    assert (shared(layout, "a"), shared(layout, "d")) == (8 + 4, 8 * 2 + 4)
    assert sorted(layout.placements["a"].lanes) == list(range(136))


def test_side_with_more_products_has_groups_in_order() -> None:
    """A group of 28 channels has 7 of every group in front of it: of 6 channels there few blocks are multiplied, of 28 here many."""
    assert shared(between(112, inputs=24), "d") == 4 + 3 * 2
    assert shared(between(112), "a") == 4 + 3 * 2  # alike on both sides: that of who writes, as it was


def test_where_nothing_is_won_the_order_stays() -> None:
    """Of 64 channels 4 have both groups in common, of 16 one: they fill no half of a block."""
    assert all(between(channels).placements["a"].lanes == tuple(range(channels)) for channels in (16, 64))
