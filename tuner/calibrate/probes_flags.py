"""Probes of flags between cores, and of how many instructions a queue holds."""

from __future__ import annotations

from simulator.npu.isa import Op
from simulator.npu.machine import Engine, Machine, Memory
from simulator.npu.program import Program
from tuner.calibrate.probes import Probe, repeated
from tuner.calibrate.programs import copy, flag, program, spare

DEEPEST = 1024  # entries of a queue that are looked for


def flag_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    """Two cores that wait for each other in turn; nothing for a machine of one."""
    if machine.cores < 2:
        return ()
    scalar = Engine.SCALAR
    ping = [flag(Op.SET, scalar, scalar, 1), flag(Op.WAIT, scalar, scalar, 1)]
    pong = [flag(Op.WAIT, scalar, scalar, 0), flag(Op.SET, scalar, scalar, 0)]
    return (repeated("two cores in turn", machine, [ping, pong], load, per=2, grows=False),)


def queue_program(machine: Machine, entries: int, load: int) -> Program | None:
    """`entries` in the vector unit's queue behind one that waits for a long move, then a long move on another engine.

    The two moves overlap where the queue holds so many, and follow one another where it does not: then the scalar unit has stopped at
    the queue, and hands out the second when the first has ended.  None where the machine has no two engines for it.
    """
    there, back = machine.path(Memory.L1, Memory.UB), machine.path(Memory.UB, Memory.L1)
    if there is None or back is None or there.engine == back.engine or "VECTOR" in (there.engine, back.engine):
        return None
    blocks = 32
    far = machine.buffer_blocks(Memory.L1) // 2

    one = copy(machine, Memory.L1, Memory.UB, 0, 0, blocks, max(1, load * there.bytes_per_cycle // (blocks * 32)))
    two = copy(machine, Memory.UB, Memory.L1, blocks, far, blocks, max(1, load * back.bytes_per_cycle // (blocks * 32)))
    first = Engine[there.engine]
    vector = Engine.VECTOR
    own = [flag(Op.SET, vector, vector, 0, 1), flag(Op.WAIT, vector, vector, 0, 1)]
    filling = (own * (entries // 2 + 1))[: (entries - 1) // 2 * 2] + ([spare(machine)] if entries % 2 == 0 else [])
    return program(machine, [[one, flag(Op.SET, first, vector), flag(Op.WAIT, vector, first), *filling, two]])
