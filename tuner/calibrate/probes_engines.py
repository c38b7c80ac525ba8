"""Probes of the scalar unit, the vector unit and the matrix unit."""

from __future__ import annotations

from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Engine, Memory
from simulator.npu.program import Program
from tuner.calibrate.probes import Probe, repeat_body
from tuner.calibrate.programs import flag, make_program, mmad, spare_instruction, vector

CLASSES = {
    "simple": Op.VADDS, "divide": Op.VRECIPROCAL, "transcendental": Op.VEXP, "reduce": Op.VLANE_MAX, "lookup": Op.VLUT,
    "ordered": Op.VLANE_ADD,
}  # fmt: skip
_FEW, _SOME = 2, 16


def smallest_program(machine: Machine) -> Program:
    """Program of one vector instruction."""
    return make_program(machine, [[spare_instruction(machine)]])


def launch_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    del load
    return (Probe("one instruction", next(iter(machine.contention)), smallest_program(machine), None, 1),)


def issue_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    """Probe of issue: flags that the scalar unit sets for itself, limited by nothing else."""
    pair = [flag(Op.SET, Engine.SCALAR, Engine.SCALAR), flag(Op.WAIT, Engine.SCALAR, Engine.SCALAR)]
    return (repeat_body("flags of the scalar unit", machine, [pair * 8], load, per=16, grows=False),)


def vector_probes(kind: str, machine: Machine, load: int) -> tuple[Probe, ...]:
    """Probes of an instruction class, back to back: few repeats show the start-up, the maximum shows the rate."""
    op = CLASSES[kind]
    limit = min(isa.MAX_REPEATS, machine.buffer_blocks(Memory.UB) // isa.REPEAT_BLOCKS)
    sizes = sorted({1 if kind == "simple" else _FEW, min(_SOME, limit), limit})
    return tuple(repeat_body(f"{kind}, {n} repeats", machine, [[vector(op, n, dtype=isa.OPS[op].types[0])]], load) for n in sizes)


def matrix_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    """Probes of products of every data type: of one fractal, where the start-up shows, up to the size of L0."""
    probes = []
    for name in machine.matrix.data_types:
        for m, k, n1 in _shapes(machine, DataType[name]):
            probes.append(repeat_body(f"product {name}, {m} x {k} x {n1}", machine, [[mmad(m, k, n1, DataType[name])]], load))
    return tuple(probes)


def _shapes(machine: Machine, dtype: DataType) -> tuple[tuple[int, int, int], ...]:
    """Shapes (rows, blocks of k, times 16 columns) that fit; the first is the smallest."""
    fractal, blocks = machine.fractal(dtype), machine.buffer_blocks

    def fits(rows: int, depth: int, n1: int) -> bool:
        return (
            depth * rows <= blocks(Memory.L0A)
            and n1 * depth * fractal.weight_blocks <= blocks(Memory.L0B)
            and n1 * rows * fractal.sum_blocks <= blocks(Memory.L0C)
        )

    candidates = ((16, 1, 1), (32, 2, 1), (64, 2, 4), (128, 4, 4), (128, 4, 8))
    return tuple(shape for shape in candidates if fits(*shape))
