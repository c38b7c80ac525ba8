"""Words of a stream: registers that change, operations, and waits where a copy and an operation touch the same bytes.

Copies run in order among each other, and so do operations; at most two of each are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.ethosu.block_dependency import longest_overlap
from simulator.ethosu.command_table import BY_NAME
from simulator.ethosu.command_words import Operation, encode

_UNDER_WAY = 2
_WAITS = {"copy": "NPU_OP_DMA_WAIT", "operation": "NPU_OP_KERNEL_WAIT"}
SHARED = -1
"""Number that stands for the shared buffer among regions."""


class ByteRange(NamedTuple):
    """Bytes [first, last) of a region."""

    region: int
    first: int
    last: int


class ByteAccesses(NamedTuple):
    """Bytes that a copy or an operation reads and writes."""

    reads: tuple[ByteRange, ...]
    writes: tuple[ByteRange, ...]

    def conflicts(self, earlier: ByteAccesses) -> bool:
        """Whether both touch a byte that one of them writes."""
        pairs = ((self.writes, earlier.reads + earlier.writes), (self.reads, earlier.writes))
        return any(
            one.region == two.region and one.first < two.last and two.first < one.last
            for ones, twos in pairs
            for one in ones
            for two in twos
        )


class CommandWriter:
    """A stream that grows; `words` is what has been written."""

    def __init__(self) -> None:
        self.words = list[int]()
        self._registers = dict[str, tuple[int, ...]]()
        self._pending: dict[str, list[ByteAccesses]] = {"copy": [], "operation": []}
        self._values = dict[str, dict[str, int]]()
        self._last: Operation | None = None

    def set(self, register: str, value: int | None = None, **fields: int) -> None:
        """Set a register, where it has another value.  value: of a register of one field."""
        command = BY_NAME[f"NPU_SET_{register}"]
        values = fields if value is None else {"value": value, **fields}
        self._values[register] = {field.name: values.get(field.name, 0) for field in command.fields}
        words = encode(command, self._values[register])
        if self._registers.get(register) != words:
            self._registers[register] = words
            self.words += words

    def set_address(self, register: str, value: int) -> None:
        """Set a register of 40 bits."""
        self.set(register, low=value & 0xFFFF_FFFF, high=value >> 32)

    def copy(self, source: ByteRange, target: ByteRange) -> None:
        """A copy of bytes that follow each other."""
        self._wait("copy", ByteAccesses((source,), (target,)))
        for side, place in (("SRC", source), ("DST", target)):
            shared = place.region == SHARED
            self.set(f"DMA0_{side}_REGION", 0 if shared else place.region, internal=int(shared))
            self.set_address(f"DMA0_{side}", place.first)
        self.set_address("DMA0_LEN", source.last - source.first)
        self._put("NPU_OP_DMA_START")

    def operate(self, operation: str, accesses: ByteAccesses, mode: int | None = None) -> None:
        """An operation whose registers are set."""
        self._wait("operation", accesses)
        values = {} if mode is None else {"mode": mode}
        begun = Operation(len(self.words), f"NPU_OP_{operation}", values, dict(self._values))
        self.set("BLOCKDEP", longest_overlap(self._last, begun))
        self._last = begun
        self._put(begun.name, **values)

    def stop(self) -> tuple[int, ...]:
        """The end, and all words."""
        self._put("NPU_OP_STOP", mask=0xFFFF)
        return tuple(self.words)

    def _put(self, name: str, **values: int) -> None:
        self.words += encode(BY_NAME[name], values)

    def _wait(self, kind: str, accesses: ByteAccesses) -> None:
        """Wait for what conflicts of the other kind, and begin."""
        opposite = "operation" if kind == "copy" else "copy"
        queue = self._pending[opposite]
        conflicts = [number for number, earlier in enumerate(queue) if accesses.conflicts(earlier)]
        if conflicts:
            remaining = len(queue) - 1 - conflicts[-1]
            self._put(_WAITS[opposite], pending=remaining)
            del queue[: len(queue) - remaining]
        queued = self._pending[kind]
        del queued[: max(0, len(queued) - (_UNDER_WAY - 1))]
        queued.append(accesses)


def byte_ranges(region: int, spans: Sequence[tuple[int, int]]) -> tuple[ByteRange, ...]:
    """Ranges of a region from (first, last)."""
    return tuple(ByteRange(region, first, last) for first, last in spans)
