"""The instructions of every core, as the assembler reads them."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.npu.asm import print_core
from simulator.npu.program import Program


def record_lines(program: Program) -> Iterator[str]:
    """Records core by core.  A record ends in @segment.operator.block: index of the operator in the target graph, and the iteration."""
    for core, code in enumerate(program.streams):
        yield from print_core(code, core).splitlines()
