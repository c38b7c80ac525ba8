"""Probes of the scalar unit, the vector unit and the matrix unit."""

from __future__ import annotations

from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Engine, Memory
from simulator.npu.program import Program
from tuner.calibrate.probes import Probe, repeated
from tuner.calibrate.programs import flag, mmad, program, spare, vector

CLASSES = {
    "simple": Op.VADDS, "divide": Op.VRECIPROCAL, "transcendental": Op.VEXP, "reduce": Op.VLANE_MAX, "lookup": Op.VLUT,
    "ordered": Op.VLANE_ADD,
}  # fmt: skip
_FEW, _SOME = 2, 16


def smallest(machine: Machine) -> Program:
    """One vector instruction."""
    return program(machine, [[spare(machine)]])


def launch_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    del load
    return (Probe("one instruction", next(iter(machine.contention)), smallest(machine), None, 1),)


def issue_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    """Flags that the scalar unit sets for itself: nothing is slower than handing them out."""
    pair = [flag(Op.SET, Engine.SCALAR, Engine.SCALAR), flag(Op.WAIT, Engine.SCALAR, Engine.SCALAR)]
    return (repeated("flags of the scalar unit", machine, [pair * 8], load, per=16, grows=False),)


def vector_probes(kind: str, machine: Machine, load: int) -> tuple[Probe, ...]:
    """Instructions of a class one after another: of few repeats, where the start-up shows, and of as many as there may be."""
    op = CLASSES[kind]
    most = min(isa.MAX_REPEATS, machine.buffer_blocks(Memory.UB) // isa.REPEAT_BLOCKS)
    sizes = sorted({1 if kind == "simple" else _FEW, min(_SOME, most), most})
    return tuple(repeated(f"{kind}, {n} repeats", machine, [[vector(op, n, dtype=isa.OPS[op].types[0])]], load) for n in sizes)


def matrix_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    """Products of one fractal, where the start-up shows, of several shapes, and as large as L0 holds, of every data type."""
    found = []
    for name in machine.matrix.data_types:
        for m, k, n1 in _shapes(machine, DataType[name]):
            found.append(repeated(f"product {name}, {m} x {k} x {n1}", machine, [[mmad(m, k, n1, DataType[name])]], load))
    return tuple(found)


def _shapes(machine: Machine, dtype: DataType) -> tuple[tuple[int, int, int], ...]:
    """(rows, blocks of k, times 16 columns) that fit; the first is the smallest."""
    fractal, blocks = machine.fractal(dtype), machine.buffer_blocks

    def fits(m: int, k: int, n1: int) -> bool:
        return (
            k * m <= blocks(Memory.L0A)
            and n1 * k * fractal.weight_blocks <= blocks(Memory.L0B)
            and n1 * m * fractal.sum_blocks <= blocks(Memory.L0C)
        )

    wanted = ((16, 1, 1), (32, 2, 1), (64, 2, 4), (128, 4, 4), (128, 4, 8))
    return tuple(shape for shape in wanted if fits(*shape))
