"""Context of a node: tables of its segment, and places of its operands.  A node is an operator on the rows of one block."""

from __future__ import annotations

from typing import Any, NamedTuple

from compiler.instructions.addressing import Allocations, place_of
from compiler.instructions.builders import Ints, TilePlace, compile_once, inlined

# indices in `slot_state`, which passes from operator to operator: end of the last tile in L0A, L0B and L0C; else the slot that is due of a
# double buffer, 0 or 1: of products (weights, results, residuals, biases), of expanded weights, of tiles on VECTOR
A_SLOT, B_SLOT, C_SLOT, W_SLOT, OUT_SLOT, RES_SLOT, BIAS_SLOT, OVERLAID_SLOT, EXPANDED_SLOT, UB_SLOT, SLOT_STATES = range(11)
STORAGE, PLANE, ALLOCATION = range(3)  # columns of an operand in `OperatorJobs.reads` and `writes`
BY_ITSELF, MADE_BY_READER, FED = range(3)  # values of `OperatorJobs.pool_roles`


class OperatorJobs(NamedTuple):
    """Jobs of all operators of a segment, as tables; operators are numbered in the segment.

    | array     | dtype, shape             | meaning                                                                                   |
    |-----------|--------------------------|-------------------------------------------------------------------------------------------|
    | kind      | int64 [operators, 2]     | number of the emitter, and offset of the job in `records`                                 |
    | pool_roles| int64 [operators]        | `BY_ITSELF`, or the role in a fused pool (`segment.pool_fusion`)                          |
    | tags      | int64 [operators]        | index of the operator in the target graph                                                 |
    | dtypes    | int64 [operators]        | `DataType` of the results                                                                 |
    | read_start| int64 [operators + 1]    | first row of an operator in `reads`                                                       |
    | reads     | int64 [reads, 6]         | operand (`addressing`), blocks of a row that are read (first, count), 1 for one pixel per |
    |           |                          | channel                                                                                   |
    | writes    | int64 [operators, 8]     | result as an operand, blocks of a row (first, count), blocks of a row for DDR, planes     |
    | constants | int64 [fetches, 6]       | operator, memory, DDR block, block in the memory, blocks, blocks per piece                |
    | lists     | int64 [operators, 3, 2]  | offsets of a job's tables in `numbers`, and their lengths                                 |
    | numbers   | int64 [numbers]          | tables of all jobs in sequence                                                            |
    | records   | int64 [fields]           | jobs in sequence; each is a record with the fields of its kind                            |
    """

    kind: Ints
    pool_roles: Ints
    tags: Ints
    dtypes: Ints
    read_start: Ints
    reads: Ints
    writes: Ints
    constants: Ints
    lists: Ints
    numbers: Ints
    records: Ints


class Work(NamedTuple):
    """Tables that the nodes of a segment share.

    images: number of groups of `together` images.  allocations: see `addressing`.  jobs: jobs of the operators.
    loads: int64 [loads, 8] of (storage, plane, allocation, first block of a row, blocks of a row, planes, tag, data type).
    readers: bool [loads, operators], whether an operator reads a load.  fresh: int64 [loads, blocks, 2], [first, stop) rows of a load.
    computed, ddr_rows: see `segment.blocks.Blocks`.  reach, bounds: see `segment.operator_run.OperatorRun`.
    convolution: int64 [1], address of the kernel of convolutions (`ops.conv_emitter.CONVOLUTION`).
    """

    images: int
    together: int
    allocations: Allocations
    jobs: OperatorJobs
    readers: Any
    loads: Ints
    fresh: Ints
    computed: Ints
    ddr_rows: Ints
    reach: Ints
    bounds: Ints
    convolution: Ints


class Node(NamedTuple):
    """Operator k of a segment on block t of an image.  iteration: index among all blocks of all images.

    image: number of the group of images.  member: number of the image within the group.  begins: whether this is the operator's first
    node."""

    k: int
    t: int
    image: int
    iteration: int
    begins: bool
    member: int


@compile_once
@inlined
def locate_operand(work: Work, node: Node, index: int, row: int) -> TilePlace:
    """Place of operand `index` of a node's operator, from `row` on."""
    storage, plane, allocation, column, width, one_pixel = work.jobs.reads[work.jobs.read_start[node.k] + index]
    return place_of(
        work.allocations, storage, plane, allocation, column, width, 0 if one_pixel else row, node.t, node.image, node.iteration,
        node.member,
    )  # fmt: skip


@compile_once
@inlined
def count_operands(work: Work, node: Node) -> int:
    """Number of operands of a node's operator."""
    return work.jobs.read_start[node.k + 1] - work.jobs.read_start[node.k]


@compile_once
@inlined
def locate_result(work: Work, node: Node, row: int) -> TilePlace:
    """First destination of the result of a node's operator, from `row` on."""
    storage, plane, allocation, column, width, _, _, _ = work.jobs.writes[node.k]
    return place_of(work.allocations, storage, plane, allocation, column, width, row, node.t, node.image, node.iteration, node.member)


@compile_once
@inlined
def read_table(work: Work, node: Node, index: int, width: int) -> Ints:
    """Table `index` of a node's operator, as rows of `width` numbers."""
    first, length = work.jobs.lists[node.k, index]
    return work.jobs.numbers[first : first + length].reshape(length // width, width)
