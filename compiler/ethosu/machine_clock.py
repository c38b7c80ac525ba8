"""Times of raw streams by a machine file: what `calibrate` fits to the log of a board."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.ethosu.block_cycles import MemoryTimes
from simulator.ethosu.raw_streams import read_raw_file
from simulator.ethosu.stream_cycles import memory_times, stream_times
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import exact_decimal

FITTED = ("ddr.bytes_per_cycle", "ddr.latency_cycles", "paths.L1->L1.bytes_per_cycle")
"""Values of a machine file that times of streams depend on, those of DRAM and the rate of SRAM."""


def memories_of(machine: Machine, level: Level | None = None) -> Mapping[int, MemoryTimes]:
    """Memories of streams.  level: whose share and latency of DRAM; none has all of it."""
    sram = next(path.bytes_per_cycle for path in machine.paths if (path.source, path.destination) == ("L1", "L1"))
    share, queueing = (exact_decimal(level.share), level.latency_cycles) if level else (1, 0)
    return memory_times(exact_decimal(sram), machine.ddr.deliverable * share, machine.ddr.latency_cycles, queueing)


class StreamClock:
    """Times of the streams of a file of raw words, all variants behind each other."""

    fitted = FITTED

    def __init__(self, raw: bytes) -> None:
        self._streams = [stream.words for variant in read_raw_file(raw).variants for stream in variant]

    def cycles(self, machine: Machine) -> Mapping[tuple[int, int | None], int]:
        """Cycles by the number of a stream, and the number of the word that starts an operation; None for the stream as a whole."""
        memories, cycles = memories_of(machine), dict[tuple[int, int | None], int]()
        for number, words in enumerate(self._streams):
            times = stream_times(words, memories)
            cycles[number, None] = times.cycles
            cycles |= {(number, operation.word): operation.end - operation.begin for operation in times.operations}
        return cycles
