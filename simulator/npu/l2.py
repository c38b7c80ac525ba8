"""Parameters of a hardware L2 between DDR and all cores."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from simulator.npu.machine_parts import Rate, Spec
from simulator.npu.parts import BLOCK_BYTES

LEAST_LINES = 1 << 6


class L2(Spec):
    """Cache of DDR that hardware fills; `simulator.l2_traffic` is the model.  Software-managed memory is `shared`.

    bytes: capacity.  line_bytes: unit of a fill.  fill_bytes_per_cycle: most that one core's DMA gets of bytes that DDR has to give; the
    rates of paths from and to DDR are those of the cache.
    """

    bytes: Annotated[int, Field(ge=1, le=1 << 32)]
    line_bytes: Annotated[int, Field(ge=BLOCK_BYTES, le=1 << 16, multiple_of=BLOCK_BYTES)]
    fill_bytes_per_cycle: Rate

    @model_validator(mode="after")
    def _lines(self) -> Self:
        if self.bytes % self.line_bytes or self.bytes < LEAST_LINES * self.line_bytes:
            least = LEAST_LINES * self.line_bytes
            raise ValueError(f"l2.bytes: {self.bytes}; accepted: multiples of line_bytes, {self.line_bytes}, from {least} on")
        return self
