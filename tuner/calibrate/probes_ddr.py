"""Probes of DDR: transfers of one DMA by size, back to back and serialised, in short runs; of many DMAs; at every level."""

from __future__ import annotations

from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Code
from tuner.calibrate.probes import Probe, repeat_body
from tuner.calibrate.programs import DDR_BLOCKS, copy, flag

RUNS = (1, 2, 3, 5)  # blocks of the short runs that show a granule
_SHORT = 64  # runs of one transfer
_LARGE = 2048  # blocks of a transfer with small start-up and latency


def _move(machine: Machine, source: str, target: str, length: int, count: int = 1, stride: int = 0, core: int = 0) -> Code:
    """Transfer from or to the core's own region of DDR, in its read half or its write half."""
    a, b = Memory[source], Memory[target]
    region = DDR_BLOCKS // machine.cores // 2
    offset = 2 * core * region + (region if b == Memory.DDR else 0)
    return copy(machine, a, b, offset if a == Memory.DDR else 0, offset if b == Memory.DDR else 0, length, count, stride)


def _room(machine: Machine, source: str, target: str) -> int:
    """Blocks of the largest transfer: half of the on-chip memory, so that simultaneous loads and stores do not overlap."""
    return min(
        _LARGE, *(machine.buffer_blocks(Memory[end]) // 2 for end in (source, target) if end != "DDR"), DDR_BLOCKS // machine.cores // 2
    )


def _after_itself(machine: Machine, source: str, target: str, length: int) -> list[Code]:
    """Transfer that the next one waits for."""
    path = machine.path(Memory[source], Memory[target])
    assert path is not None
    engine = Engine[path.engine]
    return [_move(machine, source, target, length), flag(Op.SET, engine, engine), flag(Op.WAIT, engine, engine)]


def transfer_probes(source: str, target: str, machine: Machine, load: int) -> tuple[Probe, ...]:
    """Probes of one path: the largest transfers show its rate, smaller ones the start-up, serialised ones the latency.

    The smallest transfers are limited by the number outstanding during one latency.
    """
    name, limit = f"{source} -> {target}", _room(machine, source, target)
    probes = [
        repeat_body(f"{name}, {blocks} blocks", machine, [[_move(machine, source, target, blocks)]], load)
        for blocks in sorted({2, 8, 32, 128, limit // 4, limit})
    ]
    probes += [
        repeat_body(
            f"{name}, {blocks} blocks, one after the end of another", machine, [_after_itself(machine, source, target, blocks)], load
        )
        for blocks in (2, 32)
    ]
    return tuple(probes)


def run_probes(source: str, target: str, machine: Machine, load: int) -> tuple[Probe, ...]:
    """Probes of short runs, each rounded up to the path's granule."""
    name, limit = f"{source} -> {target}", _room(machine, source, target)
    return tuple(
        repeat_body(f"{name}, runs of {length} blocks", machine, [[_move(machine, source, target, length, _SHORT, length + 1)]], load)
        for length in RUNS
        if length * _SHORT <= limit
    )


def port_probes(machine: Machine, load: int, level: str = "") -> tuple[Probe, ...]:
    """Probes of the port: all cores read, all cores write, and both at once."""
    loads, stores = _ddr_links(machine)
    probes = []
    for direction, links in (("read", loads[:1]), ("write", stores[:1]), ("read and write", [*loads[:1], *stores[:1]])):
        if not links:
            continue
        bodies = []
        for core in range(machine.cores):
            # one body for both directions, so that their queues are filled alike
            bodies.append([_move(machine, *end, min(256, _room(machine, *end)), core=core) for end in links])
        cores_text = f"{machine.cores} cores" if machine.cores > 1 else "one core"
        probes.append(repeat_body(f"{cores_text}, {direction}", machine, bodies, load, level=level))
    return tuple(probes)


def level_probes(level: str, machine: Machine, load: int) -> tuple[Probe, ...]:
    """Probes of the port and of serialised transfers, at a level."""
    link = _ddr_links(machine)[0][0]
    probe = repeat_body(
        f"{link[0]} -> {link[1]}, one after the end of another", machine, [_after_itself(machine, *link, 2)], load, level=level
    )
    return (*port_probes(machine, load, level), probe)


def _ddr_links(machine: Machine) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Paths that load and paths that store, as (source, destination)."""
    links = [(path.source, path.destination) for path in machine.paths if path.of_ddr]
    return [end for end in links if end[0] == "DDR"], [end for end in links if end[1] == "DDR"]
