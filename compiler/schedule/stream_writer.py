"""Records of a schedule: each instruction copied once to its row, with its WAITs before and its SETs behind."""

from __future__ import annotations

from dataclasses import dataclass

from numba import njit

from compiler.schedule.segment_accesses import Bytes8, Ints, Ints32
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.program import Code

OP, ENGINE, TAG, BLOCK, FLAG_CORE, FLAG_ENGINE = isa.OP, isa.ENGINE, isa.TAG, isa.BLOCK, isa.FLAG_CORE, isa.FLAG_ENGINE
_SET, _WAIT = int(Op.SET), int(Op.WAIT)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Positions of instructions and their flags in the streams; instruction numbers are below n.

    Views of the synchroniser's scratch: valid until its next call.

    parts: table of the parts (`segment_table`).  number: instruction and edge numbers of each part (`instruction_numbers`).
    after: int32 [n], next instruction of the same queue, or -1.  first: int64 [cores, 6], first instruction of every queue, or -1.
    core, engine: uint8 [n].
    Edge k, a SET and its WAIT, leads from instruction edge_from[k] to edge_to[k]; edges to i are edge_start[i] .. edge_start[i + 1].
    set_head: int32 [n], set_next: int32 [edges]: list of the edges that leave an instruction; -1 ends it.
    stream: uint8, engine of every row; core c begins at row stream_start[c].  lengths: rows of every core's stream.  The WAITs of an
    instruction stand right before it, its SETs right behind it.

    The first `reused_count` instructions are those of the previous schedule; the next `taken` ones were adopted from it.  In queue e of
    core c, reused instructions from number changed[c * 6 + e] (int64) on may have other SETs.  same_rows: unchanged rows at the start of
    each stream; the stream's end counts as a row.  same_end: unchanged rows at its end.
    same_parts: first part of the end with unchanged numbers and edges; the number of parts if there is no such end.
    """

    parts: Ints
    number: Ints
    after: Ints32
    first: Ints
    core: Bytes8
    engine: Bytes8
    edge_start: Ints32
    edge_from: Ints32
    edge_to: Ints32
    set_head: Ints32
    set_next: Ints32
    stream: Bytes8
    stream_start: tuple[int, ...]
    lengths: tuple[int, ...]
    reused_count: int
    taken: int
    changed: Ints
    same_rows: tuple[int, ...]
    same_end: tuple[int, ...]
    same_parts: int


@njit(cache=True)
def find_rows(first: Ints, stream: Bytes8, after: Ints32, edge_start: Ints32, set_head: Ints32, set_next: Ints32, place: Ints32) -> None:
    """Fill place, int32 [n], with the row of every instruction of a core.  first: int64 [6], the first one of every queue, or -1."""
    front, row = first.copy(), 0
    while row < stream.shape[0]:
        i = front[stream[row]]
        front[stream[row]] = after[i]
        row += edge_start[i + 1] - edge_start[i]
        place[i] = row
        row += 1
        edge = set_head[i]
        while edge >= 0:
            row += 1
            edge = set_next[edge]


@njit(cache=True)
def write_part(
    code: Code, first: int, tag: int, place: Ints32, core: Bytes8, engine: Bytes8, edge_start: Ints32, edge_from: Ints32, edge_to: Ints32,
    set_head: Ints32, set_next: Ints32, out: Code,
) -> None:  # fmt: skip
    """Copy the records of one part (instructions `first` ..), and the flags around them, to their rows of the stream."""
    for j in range(code.shape[0]):
        i = first + j
        record_row = place[i]
        out[record_row] = code[j]
        out[record_row, TAG] |= tag
        row = record_row - (edge_start[i + 1] - edge_start[i])
        for edge in range(edge_start[i], edge_start[i + 1]):
            _flag(out, row, record_row, _WAIT, core[edge_from[edge]], engine[edge_from[edge]])
            row += 1
        row = record_row + 1
        edge = set_head[i]
        while edge >= 0:
            _flag(out, row, record_row, _SET, core[edge_to[edge]], engine[edge_to[edge]])
            row += 1
            edge = set_next[edge]


@njit(cache=True)
def _flag(out: Code, row: int, owner: int, op: int, core: int, engine: int) -> None:
    """Write a SET or WAIT of the instruction in row `owner`; core, engine: the other side."""
    out[row, :] = 0
    out[row, OP] = op
    out[row, ENGINE] = out[owner, ENGINE]
    out[row, TAG] = out[owner, TAG]
    out[row, BLOCK] = out[owner, BLOCK]
    out[row, FLAG_CORE] = core
    out[row, FLAG_ENGINE] = engine
