"""Tables of a segment's operators and loads that depend only on its blocks: plans with other tilings and buffers share them."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from compiler.codegen.addresses import locate_tensor, resident_positions
from compiler.instructions.addressing import Allocations
from compiler.instructions.builders import Ints
from compiler.instructions.node_context import BY_ITSELF, FED, MADE_BY_READER, OperatorJobs, Work
from compiler.ops.conv_emitter import CONVOLUTION
from compiler.schedule.sliding_window import load_readers
from compiler.segment.blocks import Blocks
from compiler.segment.operator_run import run_of
from compiler.segment.strips import row_blocks_made, row_blocks_read, row_blocks_stored
from compiler.target.storage import TensorSlice
from compiler.target.target_graph import TargetGraph
from simulator.npu.parts import DataType

_LISTS = 3  # most lists of a job


class BlockTables(NamedTuple):
    """Tables of a segment.  types: data types of the results.

    work: the common part of the arguments of `emit_nodes`.  Fields that depend on tilings and addresses are empty in it: `allocations`, and
    `kind`, `constants` and `records` of its jobs.
    """

    types: tuple[DataType, ...]
    work: Work


_NOBODY = Allocations(*(np.zeros((0,) * axes, np.int64) for axes in (2, 2, 2, 3)))
_NO_ROWS = np.zeros((0, 0), np.int64)
_NO_RECORDS = np.zeros(0, np.int64)


class _Fixed(NamedTuple):
    """Numbers of an operator that no segment changes: operands and the ends of their rows in `OperatorJobs.reads`, the end of its row
    in `writes`, the data type of its result, all numbers of its tables, and the length of each table."""

    reads: tuple[tuple[TensorSlice, tuple[int, int, int]], ...]
    writes: tuple[int, ...]
    dtype: DataType
    numbers: Ints
    lengths: tuple[int, ...]


@lru_cache(maxsize=1 << 14)
def _fixed(target_graph: TargetGraph, index: int) -> _Fixed:
    spec = target_graph.operators[index]
    reads = zip(spec.reads, spec.pixels_only, strict=True)
    tables = [table.reshape(-1) for table in spec.tables()]
    return _Fixed(
        tuple((piece, (*row_blocks_read(target_graph, spec, i), int(one))) for i, (piece, one) in enumerate(reads)),
        (*row_blocks_made(target_graph, spec), *row_blocks_stored(target_graph, spec), spec.y.planes),
        target_graph.type_of(spec.y),
        np.concatenate([np.zeros(0, np.int64), *tables]),
        tuple(map(len, tables)),
    )


@lru_cache(maxsize=4096)
def block_tables(target_graph: TargetGraph, blocks: Blocks) -> BlockTables:
    specs, positions = target_graph.operators[blocks.start : blocks.stop], resident_positions(blocks)
    fixed_tables = [_fixed(target_graph, spec.index) for spec in specs]
    reads, writes, lists, used = [], [], [], 0
    for k, (spec, fixed) in enumerate(zip(specs, fixed_tables, strict=True)):
        streamed = blocks.streamed >> k & 1  # chunks come from DDR, even if the tensor is in L1
        for i, (piece, row) in enumerate(fixed.reads):
            location = (piece.storage, piece.plane, -1) if streamed and i == 1 else locate_tensor(blocks, positions, piece)
            reads.append(location + row)
        destination = locate_tensor(blocks, positions, spec.y) if blocks.inside[k] else (spec.y.storage, spec.y.plane, -1)
        writes.append(destination + fixed.writes)
        begins = []
        for length in (*fixed.lengths, *(0,) * _LISTS)[:_LISTS]:
            begins.append((used if length else 0, length))
            used += length
        lists.append(begins)
    loads = []
    for load in blocks.loads:
        storage, location = (
            target_graph.storages[load.storage],
            locate_tensor(blocks, positions, TensorSlice(load.storage, load.plane, load.planes)),
        )
        loads.append(
            (*location, storage.first, storage.row_blocks, load.planes, target_graph.operators[blocks.start + load.step].tag, storage.dtype)
        )
    fresh = [blocks.allocations[load.storage].fresh for load in blocks.loads]
    run = run_of(target_graph, blocks.start, blocks.stop, blocks.streamed, blocks.held, blocks.fed)
    jobs = OperatorJobs(
        kind=_NO_ROWS,
        pool_roles=np.array(
            [FED if blocks.fed >> k & 1 else BY_ITSELF if until == k else MADE_BY_READER for k, until in enumerate(blocks.until)], np.int64
        ),
        tags=np.array([spec.tag for spec in specs], np.int64),
        dtypes=np.array([fixed.dtype for fixed in fixed_tables], np.int64),
        read_start=np.array([0, *accumulate(len(fixed.reads) for fixed in fixed_tables)], np.int64),
        reads=np.array(reads, np.int64),
        writes=np.array(writes, np.int64),
        constants=_NO_ROWS,
        lists=np.array(lists, np.int64),
        numbers=np.concatenate([fixed.numbers for fixed in fixed_tables]),
        records=_NO_RECORDS,
    )
    work = Work(
        images=target_graph.images,
        together=target_graph.together,
        allocations=_NOBODY,
        jobs=jobs,
        readers=load_readers(target_graph, blocks),
        loads=np.array(loads, np.int64).reshape(-1, 8),
        fresh=np.array(fresh, np.int64).reshape(-1, blocks.count, 2),
        computed=blocks.computed,
        ddr_rows=blocks.ddr_rows,
        reach=run.reach,
        bounds=run.bounds,
        convolution=CONVOLUTION,
    )
    return BlockTables(tuple([fixed.dtype for fixed in fixed_tables]), work)
