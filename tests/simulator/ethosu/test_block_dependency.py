"""Overlap of operations: Vela's streams have the same values, and no block reads what an unfinished one writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product

import pytest

from compiler.ethosu.network_parts import compile_network
from compiler.ethosu.segments import StreamPlan, StreamSegment
from compiler.frontend.tflite.network import read_network
from simulator.ethosu.block_dependency import LONGEST, longest_overlap
from simulator.ethosu.block_operation import Result, kernel_of, result_of, source_of
from simulator.ethosu.command_words import Operation, decode_operations
from simulator.ethosu.feature_map import BRICK, FeatureMap
from tests.compiler.ethosu.models import model
from tests.simulator.ethosu.streams import cases

BLOCKS = ("NPU_OP_CONV", "NPU_OP_DEPTHWISE", "NPU_OP_POOL", "NPU_OP_ELEMENTWISE")
STRICTER = 1
"""Pairs of which Vela's streams have more than the rule: a sum of channels behind a table."""


def pairs(words: list[int]) -> Iterator[tuple[Operation, Operation]]:
    """Operations behind each other."""
    operations = [operation for operation in decode_operations(words) if operation.name in BLOCKS]
    yield from pairwise(operations)


def test_streams_of_vela_have_the_same_values():
    counts = Counter[str]()
    for case in cases():
        for previous, operation in pairs(case.words):
            rule, given = longest_overlap(previous, operation), operation.field("BLOCKDEP")
            counts["equal" if rule == given else "stricter" if rule < given else "longer"] += 1
    assert counts["stricter"] <= STRICTER
    assert counts["equal"] > 20 * (counts["stricter"] + counts["longer"])


def bytes_of(feature_map: FeatureMap, rows: range, columns: range, channels: range) -> set[int]:
    """Bytes of elements, one by one; of tile 0."""
    element = feature_map.dtype.itemsize
    out = set[int]()
    for row, column, channel in product(rows, columns, channels):
        assert row < feature_map.rows0
        assert column < feature_map.columns0
        place = feature_map.bases[0] + row * feature_map.stride_y
        if feature_map.bricks:
            place += channel // BRICK * feature_map.stride_c + (column * BRICK + channel % BRICK) * element
        else:
            place += column * feature_map.stride_x + channel * element
        out |= set(range(place, place + element))
    return out


def blocks(result: Result) -> list[tuple[range, range, range]]:
    """Blocks in the order in which they are made."""
    axes = [
        [range(first, min(first + size, extent)) for first in range(0, extent, size)]
        for extent, size in (
            (result.rows, result.block_rows),
            (result.columns, result.block_columns),
            (result.channels, result.block_channels),
        )
    ]
    return [(rows, columns, channels) for rows in axes[0] for columns in axes[1] for channels in axes[2]]


def hazards(previous: Operation, operation: Operation, overlap: int) -> bool:
    """Whether a block reads what one of the blocks before it may not have written."""
    before, result, kernel = result_of(previous), result_of(operation), kernel_of(operation)
    source, last = source_of(operation, result, kernel), blocks(before)
    depth = 32 if operation.name == "NPU_OP_CONV" else source.channels
    job = 0
    for rows, columns, channels in blocks(result):
        for first in range(0, source.channels, depth):
            unfinished = last[len(last) - max(0, overlap - job) :] if overlap > job else []
            if not unfinished:
                return False
            reads = [
                range(
                    max(0, part[0] * stride - pad) // kernel.upscale,
                    -(-min(size * kernel.upscale, part[-1] * stride - pad + (taps - 1) * dilation + 1) // kernel.upscale),
                )
                for part, stride, pad, size, taps, dilation in (
                    (rows, kernel.stride_y, kernel.pad_top, source.rows, kernel.rows, kernel.dilation_y),
                    (columns, kernel.stride_x, kernel.pad_left, source.columns, kernel.columns, kernel.dilation_x),
                )
            ]
            own = channels if operation.name != "NPU_OP_CONV" else range(first, min(source.channels, first + depth))
            touched = bytes_of(source.map, reads[0], reads[1], own)
            if any(source.map.region == before.map.region and touched & bytes_of(before.map, *block) for block in unfinished):
                return True
            job += 1
    return False


@pytest.mark.parametrize("name", ["keyword_spotting", "table_activations"])
def test_no_block_reads_what_is_not_written(name):
    """Byte by byte, of our streams; one more would be a hazard somewhere, so the rule is not merely careful."""
    network = read_network(model(name).data)
    compiled = compile_network(network, StreamPlan((StreamSegment(0, len(network.operators)),)), 384 << 10)
    longer = 0
    for part in compiled.parts:
        for previous, operation in pairs(list(part.stream.words)):
            if operation.name == "NPU_OP_ELEMENTWISE" or operation.registers["IFM_HEIGHT0_M1"] != operation.registers["IFM_HEIGHT1_M1"]:
                continue
            overlap = operation.field("BLOCKDEP")
            assert overlap == longest_overlap(previous, operation)
            assert not hazards(previous, operation, overlap)
            longer += overlap < LONGEST and hazards(previous, operation, overlap + 1)
    assert longer
