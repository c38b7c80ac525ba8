"""The instructions of every core, as the assembler reads them."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.npu.asm import print_core
from simulator.npu.program import Program


def record_lines(program: Program) -> Iterator[str]:
    """Core by core.  A record ends in @segment.operator.block, of which the operator is the unit's number and the block an iteration."""
    for core, code in enumerate(program.streams):
        yield from print_core(code, core).splitlines()
