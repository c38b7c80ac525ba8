"""What `access` says is touched covers what the interpreter touches; exactly, but for IM2COL's whole rows and dead writes of VECTOR."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.functional import apply
from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses, extent
from simulator.npu.isa import Op
from simulator.npu.parts import BLOCK_BYTES, Memory
from tests.simulator.micro import SIDES, TINY, memories, program, records


def touched(record: list[int]) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Blocks read and written by memory, from `accesses`, range by range."""
    rows = np.zeros((MAX_RANGES, 8), np.int64)
    sets: tuple[dict[int, set[int]], dict[int, set[int]]] = ({}, {})
    for row in rows[: accesses(np.array([record], np.int32), 0, rows)].tolist():
        memory, write, first, length, count, stride, count2, stride2 = row
        blocks = {first + b + i * stride + j * stride2 for b in range(length) for i in range(count) for j in range(count2)}
        assert extent(np.array(row)) == (min(blocks), max(blocks) + 1)
        sets[write].setdefault(memory, set()).update(blocks)
    return sets


def by_block(memory: np.ndarray) -> np.ndarray:
    return memory.reshape(-1, BLOCK_BYTES)


@settings(max_examples=120, deadline=None)
@given(records(sides=SIDES))
def test_named_blocks_alone_change_and_all_are_written(record):
    _, writes = touched(record)
    changed: dict[int, set[int]] = {}
    for seed in range(2):
        before, after = memories(seed), memories(seed)
        apply(after, record)
        for memory in Memory:
            rows = np.flatnonzero((by_block(before[memory]) != by_block(after[memory])).any(axis=1)).tolist()
            changed.setdefault(memory, set()).update(rows)
    for memory in Memory:
        assert changed[memory] <= writes.get(memory, set())
    op, p = record[isa.OP], dict(zip(isa.OPS[Op(record[isa.OP])].params, record[isa.P :], strict=False))
    in_place = op == Op.COPY and record[isa.SRC] == record[isa.DST]
    all_written = op in (Op.COPY, Op.IM2COL, Op.FRACTAL, Op.MMAD, Op.FIXPIPE) or (op == Op.VFILL and p["imm"])
    if all_written and not in_place:
        for memory, blocks in writes.items():
            assert blocks == changed[memory]


@pytest.mark.parametrize(
    "op",
    [Op.COPY, Op.IM2COL, Op.FRACTAL, Op.MMAD, Op.MMAD_IM2COL, Op.FIXPIPE, Op.VMADD, Op.VLANE_SUM, Op.VLANE_ADD, Op.VLUT, Op.VCONVERT],
)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_nothing_but_the_named_blocks_is_read(op, data):
    """Other bytes everywhere else: the same result."""
    record = data.draw(records((op,), sides=SIDES))
    reads, writes = touched(record)
    first, second = memories(1), memories(2)
    for memory, blocks in reads.items():
        by_block(second[memory])[sorted(blocks)] = by_block(first[memory])[sorted(blocks)]
    apply(first, record)
    apply(second, record)
    for memory, blocks in writes.items():
        np.testing.assert_array_equal(by_block(first[memory])[sorted(blocks)], by_block(second[memory])[sorted(blocks)])


@settings(max_examples=200, deadline=None)
@given(records(ops=(Op.COPY, Op.FRACTAL, Op.MMAD, Op.VADD, Op.VMADD, Op.VLANE_SUM, Op.VCONVERT), sides=SIDES))
def test_every_named_block_is_read(record):
    """Change one source block that nobody overwrites: the result changes, unless a later write of the same instruction hides it."""
    reads, writes = touched(record)
    plain = memories(1)
    apply(plain, record)
    repeated = len({b for blocks in writes.values() for b in blocks}) < _written(record)
    if repeated:
        return
    for memory, blocks in reads.items():
        for block in sorted(blocks - writes.get(memory, set()))[:3]:
            other = memories(1)
            by_block(other[memory])[block].view(np.uint16)[:] = 0x5000  # 32 in float16, beyond all others in float32
            apply(other, record)
            assert any(
                (by_block(other[m])[sorted(named)] != by_block(plain[m])[sorted(named)]).any() for m, named in writes.items()
            ), (memory, block)  # fmt: skip


def _written(record: list[int]) -> int:
    """Blocks that are written, counted as often as they are."""
    rows = np.zeros((MAX_RANGES, 8), np.int64)
    return sum(int(row[3] * row[4] * row[6]) for row in rows[: accesses(np.array([record], np.int32), 0, rows)] if row[1])


def test_ranges_of_a_stream():
    text = """
    MTE2 COPY L1[5] DDR[7] length=2 count=3 sstride=4 dstride=2 count2=2 sstride2=100 dstride2=10
    MTE2 SET core=0 engine=MTE1 id=0
    CUBE MMAD L0C[4] L0A[1] L0B[2] mpad=16 k=2 n1=3 acc=1
    """
    code, rows = program(text).streams[0], np.zeros((MAX_RANGES, 8), np.int64)
    found = [rows[: accesses(code, i, rows)].tolist() for i in range(3)]
    assert found[0] == [[Memory.DDR, 0, 7, 2, 3, 4, 2, 100], [Memory.L1, 1, 5, 2, 3, 2, 2, 10]]
    assert found[1] == []
    assert found[2] == [
        [Memory.L0A, 0, 1, 32, 1, 0, 1, 0],
        [Memory.L0B, 0, 2, 96, 1, 0, 1, 0],
        [Memory.L0C, 0, 4, 96, 1, 0, 1, 0],
        [Memory.L0C, 1, 4, 96, 1, 0, 1, 0],
    ]


@settings(max_examples=100, deadline=None)
@given(records())
def test_random_records_are_legal(record):
    """What the tests above run on is what a machine takes (so that they say something)."""
    p = program("")
    streams = (np.array([record], np.int32), *p.streams[1:])
    type(p)(p.machine, streams, p.memory).verify(TINY)
