"""Probes of on-chip paths: their transfers, small and large, in short bursts and in one piece."""

from __future__ import annotations

from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.program import Code
from tuner.calibrate.probes import Probe, repeat_body
from tuner.calibrate.programs import copy, fixpipe, free_blocks, im2col

# burst lengths in blocks: a granule rounds them up
BURSTS = (1, 2, 3, 4, 8)
_SHORT = 32  # bursts of one transfer


def uses_copy(source: str, target: str) -> bool:
    """Whether COPY uses the path: its bursts are rounded up to the granule."""
    return (source, target) not in {("L1", "L0A"), ("L0C", "UB"), ("L0C", "L1")}


def path_probes(source: str, target: str, machine: Machine, load: int) -> tuple[Probe, ...]:
    """Probes of one on-chip path."""
    bodies: list[tuple[str, Code]] = []
    a, b = Memory[source], Memory[target]
    if (source, target) == ("L1", "L0A"):
        limit = min(free_blocks(machine, a), free_blocks(machine, b))
        for m, k in ((16, 1), (16, 8), (64, 8), (64, limit // 64)):
            if m * k <= limit:
                bodies.append((f"{m} rows of {k} blocks", im2col(machine, m, k)))
    elif source == "L0C":
        fractal = machine.fractal(DataType.float16)
        limit = min(free_blocks(machine, a) // fractal.sum_blocks, free_blocks(machine, b) * fractal.lanes // fractal.columns)
        for m, n1 in ((1, 1), (16, 1), (64, 2), (limit // 4 // 16 * 16, 4)):
            bodies.append((f"{m} rows of {n1} x 16 sums", fixpipe(machine, b, m, n1)))
    else:
        limit = min(free_blocks(machine, a), free_blocks(machine, b))
        bodies += [(f"{count} blocks", copy(machine, a, b, 0, 0, count)) for count in sorted({1, 16, limit // 4, limit})]
        bodies += [
            (f"bursts of {length} blocks", copy(machine, a, b, 0, 0, length, _SHORT, length + 1))
            for length in BURSTS
            if limit >= (length + 1) * _SHORT
        ]
    return tuple(repeat_body(f"{source} -> {target}, {label}", machine, [[body]], load) for label, body in dict(bodies).items())
