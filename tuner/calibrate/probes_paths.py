"""Probes of the paths on chip: the moves that each allows, small and large, in short bursts and in one piece."""

from __future__ import annotations

from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.program import Code
from tuner.calibrate.probes import Probe, repeated
from tuner.calibrate.programs import copy, fixpipe, im2col, room

# bursts of so many blocks: what a granule rounds up
BURSTS = (1, 2, 3, 4, 8)
_SHORT = 32  # of them


def copies(source: str, target: str) -> bool:
    """Whether COPY moves there, whose bursts are rounded up to the path's granule."""
    return (source, target) not in {("L1", "L0A"), ("L0C", "UB"), ("L0C", "L1")}


def path_probes(source: str, target: str, machine: Machine, load: int) -> tuple[Probe, ...]:
    """Of one path on chip."""
    found: list[tuple[str, Code]] = []
    a, b = Memory[source], Memory[target]
    if (source, target) == ("L1", "L0A"):
        most = min(room(machine, a), room(machine, b))
        for m, k in ((16, 1), (16, 8), (64, 8), (64, most // 64)):
            if m * k <= most:
                found.append((f"{m} rows of {k} blocks", im2col(machine, m, k)))
    elif source == "L0C":
        fractal = machine.fractal(DataType.float16)
        most = min(room(machine, a) // fractal.sum_blocks, room(machine, b) * fractal.lanes // fractal.columns)
        for m, n1 in ((1, 1), (16, 1), (64, 2), (most // 4 // 16 * 16, 4)):
            found.append((f"{m} rows of {n1} x 16 sums", fixpipe(machine, b, m, n1)))
    else:
        most = min(room(machine, a), room(machine, b))
        found += [(f"{count} blocks", copy(machine, a, b, 0, 0, count)) for count in sorted({1, 16, most // 4, most})]
        found += [
            (f"bursts of {length} blocks", copy(machine, a, b, 0, 0, length, _SHORT, length + 1))
            for length in BURSTS
            if most >= (length + 1) * _SHORT
        ]
    return tuple(repeated(f"{source} -> {target}, {what}", machine, [[body]], load) for what, body in dict(found).items())
