"""Programs on the machine `tiny` of which every cycle can be worked out on paper.

tiny: issue 0 cycles, queues of 16, DDR 32 bytes (one block) per cycle with reads up to 32 and writes up to 16, latency 4,
two transfers outstanding per queue; L1 -> L0A, L0C -> anywhere two blocks per cycle, other paths one; flags to the other core take
3 cycles.
"""

from __future__ import annotations

from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Code
from simulator.timing import Timing, simulate
from tests.programs import copy, program, record

TINY = load_machine("tiny")
MTE2, MTE1, CUBE, FIXPIPE, VECTOR, MTE3 = Engine.MTE2, Engine.MTE1, Engine.CUBE, Engine.FIXPIPE, Engine.VECTOR, Engine.MTE3
SCALAR = Engine.SCALAR
DDR, L1, L0A, L0B, L0C, UB = Memory.DDR, Memory.L1, Memory.L0A, Memory.L0B, Memory.L0C, Memory.UB


def load(blocks: int) -> Code:
    return copy(TINY, DDR, L1, blocks)


def store(blocks: int) -> Code:
    return copy(TINY, UB, DDR, blocks, to=64)


def up(cycles: int) -> Code:
    """L1 -> UB on MTE1: one block per cycle."""
    return copy(TINY, L1, UB, cycles)


def mmad(cycles: int) -> Code:
    """One fractal per cycle: m = n = 16, k = cycles."""
    return record(Op.MMAD, CUBE, 16, cycles, 1, 0, src=L0A, dst=L0C, d=0, s=(0, 0))


def vector(cycles: int) -> Code:
    """One repeat per cycle."""
    return record(Op.VRELU, VECTOR, 1, cycles, 1, 1, 1, 1, src=UB, dst=UB, d=0, s=(0,))


def run(*streams: list[Code], machine: Machine = TINY, share: int = SHARE_UNIT) -> Timing:
    p = program(machine, *streams)
    p.verify(machine)
    return simulate(p, machine, Level.of_units(share), record=True)


def spans(timing: Timing, core: int = 0) -> list[tuple[int, int]]:
    assert timing.recorded is not None
    return list(zip(timing.recorded.start[core].tolist(), timing.recorded.end[core].tolist(), strict=True))


def tiny_with(ddr: dict[str, int] | None = None, **values: int) -> Machine:
    return TINY.model_copy(update=values | {"ddr": TINY.ddr.model_copy(update=ddr or {})})
