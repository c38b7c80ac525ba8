"""Upper bounds on the savings of mechanisms that do not exist: champions timed again without the work that a mechanism would remove.

Records of a champion's streams keep their places and flags; records that a mechanism would remove move or compute almost nothing, and the
simulator times the streams again.  Dependences stay unchanged, and there is no search with the mechanism: no other schedule of the same
segments gains more by it, but another segmentation may.

| column | is without |
|---|---|
| zeros | padding of channels, and zeros of the few grouped weights that are not expanded on chip, in loads of weights; masks |
| blocks | blocks of 16 x C0 weights that are all zero, on CUBE and in what MTE1 loads for it |
| depthwise | the part of depthwise products that VECTOR would do in the time that CUBE has for the rest |
| spills | loads and stores of intermediate tensors |
| again | repeated loads of weights |
| ahead | waiting for weights: all of them early, as long as DDR is not busy all the time |
| interleaved | MTE1 and FIXPIPE in the way of CUBE: the busiest of the three, if the rest allows it |
| vector | VECTOR's work |
| all | all of the above |

A share is 1 - cycles after / cycles before.  `stream` is the size of the program, in percent of its DDR traffic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ops.conv import ConvSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.target.target_graph import TargetGraph
from scripts.studies import Arm, Pair, Row, Study, Table, geometric, groups
from scripts.traffic import accessed_blocks, moved_bytes, needed_constants, transfers
from simulator.npu import isa
from simulator.npu.cycles import port_units
from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT
from simulator.npu.parts import BLOCK_BYTES, Engine
from simulator.npu.program import Code, Program
from simulator.timing import Timing, simulate

Mask = NDArray[np.bool_]
NETWORKS = "shufflenet,made:mobilenet_v2,densenet121,resnet50,made:vit_b16"


@dataclass(frozen=True, eq=False)
class Stream:
    """Records of one core.  target_graph: with operators in the order of the program."""

    target_graph: TargetGraph
    program: Program
    code: Code

    @cached_property
    def operator(self) -> NDArray[np.int64]:
        return isa.operator_of(self.code[:, isa.TAG].astype(np.int64))

    @cached_property
    def moves(self) -> list[tuple[int, bool, str, str, tuple[int, ...]]]:
        """DDR transfers: row, whether it stores, kind and name of the buffer, range."""
        buffers = sorted((b for b in self.program.memory.buffers if b.size_blocks), key=lambda b: b.offset_blocks)
        firsts = np.array([b.offset_blocks for b in buffers])
        moves = []
        for row, store, span in transfers(self.code):
            buffer = buffers[int(np.searchsorted(firsts, span[0], "right")) - 1]
            moves.append((row, store, buffer.kind, buffer.name, span))
        return moves

    def rows(self, kind: str) -> NDArray[np.int64]:
        """Rows of the transfers of buffers of a kind."""
        return np.array([row for row, _, move_kind, _, _ in self.moves if move_kind == kind], np.int64)

    @cached_property
    def loaded_again(self) -> NDArray[np.int64]:
        """Rows of loads of constants whose blocks were loaded before."""
        loaded_blocks, repeated = np.zeros(self.program.memory.size_blocks, bool), []
        for row, _, kind, _, span in self.moves:
            if kind == "constant":
                block_numbers = accessed_blocks(span)
                if loaded_blocks[block_numbers].all():
                    repeated.append(row)
                loaded_blocks[block_numbers] = True
        return np.array(repeated, np.int64)

    def has_operator(self, *ops: Op) -> Mask:
        return np.isin(self.code[:, isa.OP], ops)

    @cached_property
    def feeds(self) -> Mask:
        """MTE1's records for CUBE."""
        return self.has_operator(Op.IM2COL, Op.FRACTAL) | (self.has_operator(Op.COPY) & (self.code[:, isa.ENGINE] == Engine.MTE1))


def shrink(code: Code, rows: NDArray[Any], share: float | NDArray[np.float64], columns: Sequence[int], least: int = 1) -> None:
    """Scale parameters of some rows, to no less than `least`."""
    for column in columns:
        code[rows, column] = np.maximum(least, np.ceil(code[rows, column] * share - 1e-9).astype(np.int64))


def _shorten_copies(code: Code, rows: NDArray[Any]) -> None:
    """Reduce copies to one block each."""
    for column in (isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2):
        code[rows, column] = 1


def remove_padding(stream: Stream, code: Code) -> None:
    """Remove zeros from loads of weights."""
    sizes = {b.name: b.size_blocks * BLOCK_BYTES for b in stream.program.memory.buffers}
    share = {name: min(1.0, needed / sizes[name]) for name, needed in needed_constants(stream.target_graph).items()}
    rows_and_shares = [(row, share[name]) for row, _, kind, name, _ in stream.moves if kind == "constant" and name in share]
    rows, shares = np.array([row for row, _ in rows_and_shares], np.int64), np.array([part for _, part in rows_and_shares])
    total_length = code[rows, isa.C_LENGTH] * code[rows, isa.C_COUNT] * code[rows, isa.C_COUNT2]
    code[rows, isa.C_LENGTH] = np.maximum(1, np.ceil(total_length * shares - 1e-9))
    code[rows, isa.C_COUNT] = code[rows, isa.C_COUNT2] = 1


def remove_zero_blocks(stream: Stream, code: Code) -> None:
    """Remove zero blocks of weights from MMADs and from their loads by MTE1."""
    share = np.array([_filled(stream.target_graph, spec) for spec in stream.target_graph.operators])[stream.operator]
    sparse = share < 1
    shrink(code, (rows := np.flatnonzero(stream.has_operator(Op.MMAD) & sparse)), share[rows], [isa.M_K])
    shrink(code, (rows := np.flatnonzero(stream.feeds & stream.has_operator(Op.COPY) & sparse)), share[rows], [isa.C_LENGTH])


def _filled(target_graph: TargetGraph, spec: Any) -> float:
    """Share of weight blocks with a nonzero weight; 1 for an operator without weights."""
    if not isinstance(spec, ConvSpec) or getattr(spec.operator, "weights", None) is None or spec.lanes == 4:
        return 1.0
    conv, x, y = spec.operator, target_graph.layout.placements[spec.operator.x], target_graph.layout.placements[spec.operator.y]
    out = np.asarray(y.lanes) // spec.fractal.columns
    channels = np.asarray(x.lanes) // spec.fractal.lanes
    per_group, c_in = len(out) // conv.groups, conv.weights.shape[1]
    pairs = {
        (int(n), int(c))
        for g in range(conv.groups)
        for n in np.unique(out[g * per_group : (g + 1) * per_group])
        for c in np.unique(channels[g * c_in : (g + 1) * c_in])
    }
    return len(pairs) / (spec.groups * spec.n1 * spec.c1)


def share_depthwise(stream: Stream, code: Code) -> None:
    """Depthwise products shared by VECTOR and CUBE: both together finish after the harmonic sum of their times."""
    machine = stream.target_graph.machine
    keep = np.ones(len(stream.target_graph.operators))
    for spec in stream.target_graph.operators:
        if isinstance(spec, ConvSpec) and _depthwise(spec.operator):
            taps = math.prod(spec.operator.weights.shape[2:])
            vector_cycles = taps * machine.vector.simple_cycles / isa.REPEAT_BLOCKS  # per pixel of one plane
            macs = spec.fractal.rows * spec.k1 * spec.fractal.lanes * spec.n1 * spec.fractal.columns / spec.fractal.rows / spec.c1
            cube_cycles = macs / float(machine.macs_per_cycle[stream.target_graph.type_of(spec.reads[0]).name.replace("uint8", "int8")])
            keep[spec.index] = vector_cycles / (vector_cycles + cube_cycles)
    share = keep[stream.operator]
    split = share < 1
    shrink(code, (rows := np.flatnonzero(stream.has_operator(Op.MMAD) & split)), share[rows], [isa.M_MPAD], 16)
    shrink(code, (rows := np.flatnonzero(stream.has_operator(Op.IM2COL) & split)), share[rows], [isa.I_M, isa.I_MPAD], 16)


def _depthwise(operator: Any) -> bool:
    return getattr(operator, "weights", None) is not None and operator.groups == operator.weights.shape[0] > 1


def remove_spills(stream: Stream, code: Code) -> None:
    _shorten_copies(code, stream.rows("scratch"))


def remove_repeated_loads(stream: Stream, code: Code) -> None:
    _shorten_copies(code, stream.loaded_again)


def remove_weight_loads(stream: Stream, code: Code) -> None:
    """Remove loads of constants: for `ahead`, which adds their bytes again."""
    _shorten_copies(code, stream.rows("constant"))


def remove_feeding(stream: Stream, code: Code) -> None:
    """Remove the time of MTE1 and FIXPIPE: for `interleaved`, which takes the maximum with their busy cycles."""
    _shorten_copies(code, np.flatnonzero(stream.feeds & stream.has_operator(Op.COPY)))
    shrink(code, np.flatnonzero(stream.has_operator(Op.IM2COL)), 0, [isa.I_K])
    shrink(code, np.flatnonzero(stream.has_operator(Op.FRACTAL)), 0, [isa.R_K, isa.R_N1])
    shrink(code, np.flatnonzero(stream.has_operator(Op.FIXPIPE)), 0, [isa.F_M, isa.F_N1])


def remove_vector_work(stream: Stream, code: Code) -> None:
    shrink(code, np.flatnonzero(stream.code[:, isa.OP] >= isa.FIRST_VECTOR_OP), 0, [isa.V_REPEATS])


Change = Callable[[Stream, Code], None]
DIRECT: dict[str, tuple[Change, ...]] = {
    "zeros": (remove_padding,), "blocks": (remove_zero_blocks,), "depthwise": (share_depthwise,), "spills": (remove_spills,),
    "again": (remove_repeated_loads,), "vector": (remove_vector_work,),
}  # fmt: skip
EVERY = (remove_padding, remove_zero_blocks, share_depthwise, remove_spills, remove_repeated_loads, remove_vector_work)


class Champion:
    """A program and its machine, timed with some of its records changed."""

    def __init__(self, target_graph: TargetGraph, program: Program, level: str) -> None:
        self.program, self.machine, self.level = program, target_graph.machine, target_graph.machine.contention[level]
        self.streams = [Stream(target_graph, program, code) for code in program.streams]
        self.port = port_units(target_graph.machine, self.level.share_units) / SHARE_UNIT  # bytes per cycle

    def timed(self, *changes: Change) -> Timing:
        codes = []
        for stream in self.streams:
            code = stream.code.copy()
            for change in changes:
                change(stream, code)
            codes.append(code)
        return simulate(replace(self.program, streams=tuple(codes)), self.machine, self.level)

    def cycles(self, *changes: Change) -> int:
        return self.timed(*changes).cycles

    def fetch_early(self, *changes: Change) -> int:
        """Cycles with free prefetch of weights: at least those without loads of weights, and those of all DDR bytes."""
        timing = self.timed(*changes)
        return min(timing.cycles, max(self.cycles(*changes, remove_weight_loads), math.ceil(timing.bus_units / SHARE_UNIT / self.port)))

    def interleaved(self, *changes: Change) -> int:
        busy_cycles = self.timed(*changes).busy_cycles.max(0)
        return min(
            self.cycles(*changes),
            max(self.cycles(*changes, remove_feeding), int(busy_cycles[Engine.MTE1]), int(busy_cycles[Engine.FIXPIPE])),
        )

    def all_ideal(self) -> int:
        """All mechanisms together: at least the maximum of the two bounds above."""
        timing = self.timed(*EVERY)
        busy_cycles = timing.busy_cycles.max(0)
        floors = (math.ceil(timing.bus_units / SHARE_UNIT / self.port), int(busy_cycles[Engine.MTE1]), int(busy_cycles[Engine.FIXPIPE]))
        return min(timing.cycles, max(self.cycles(*EVERY, remove_weight_loads, remove_feeding), *floors))


COLUMNS = ("zeros", "blocks", "depthwise", "spills", "again", "ahead", "interleaved", "vector", "all")


def ideal_rows(pair: Pair) -> Iterator[Row]:
    """One row per level."""
    result = pair.results["search"]
    for level in pair.levels:
        program = Compiler(result.target_graph).compile(result.plan(level))
        assert not isinstance(program, Infeasible), program
        champion = Champion(result.target_graph, program, level)
        timing = champion.timed()
        changed_cycles = {name: champion.cycles(*changes) for name, changes in DIRECT.items()}
        changed_cycles |= {"ahead": champion.fetch_early(), "interleaved": champion.interleaved(), "all": champion.all_ideal()}
        row: Row = {"level": level, "cycles": timing.cycles, "stream_bytes": program.instructions * isa.WORDS * 4}
        yield row | {"ddr_bytes": moved_bytes(timing)} | {name: changed_cycles[name] for name in COLUMNS}


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    for (level,), level_rows in groups(rows, "level").items():
        yield f"\nat {level}: saved, at most"
        saved = [
            row | {name: 1 - row[name] / row["cycles"] for name in COLUMNS} | {"stream": row["stream_bytes"] / row["ddr_bytes"]}
            for row in level_rows
        ]
        yield Table.from_rows(saved, "<network", "<machine", "cycles", *(f"{name}:.0%" for name in (*COLUMNS, "stream")))
        yield f"all, geometric mean: {geometric([row['all'] / row['cycles'] for row in level_rows]):.2f} of the cycles"


STUDY = Study("worth", {"search": Arm()}, ideal_rows, show, networks=NETWORKS, candidates=96, seeds=1)
