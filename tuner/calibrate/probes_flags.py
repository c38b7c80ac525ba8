"""Probes of flags between cores, and of how many instructions a queue holds."""

from __future__ import annotations

from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import DataPath
from simulator.npu.parts import BLOCK_BYTES, Engine, Memory
from simulator.npu.program import Program
from tuner.calibrate.probes import Probe, repeated
from tuner.calibrate.programs import copy, flag, program, spare

DEEPEST = 1024  # entries of a queue that are looked for
_BLOCKS = 32  # of a burst, which is moved again and again


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
    far = machine.buffer_blocks(Memory.L1) // 2
    one = copy(machine, Memory.L1, Memory.UB, 0, 0, _BLOCKS, _bursts(there, load))
    two = copy(machine, Memory.UB, Memory.L1, _BLOCKS, far, _BLOCKS, _bursts(back, load))
    first, vector = Engine[there.engine], Engine.VECTOR
    own = [flag(Op.SET, vector, vector), flag(Op.WAIT, vector, vector)]  # which take no time
    filling = own * ((entries - 1) // 2) + ([spare(machine)] if entries % 2 == 0 else [])
    return program(machine, [[one, flag(Op.SET, first, vector), flag(Op.WAIT, vector, first), *filling, two]])


def _bursts(path: DataPath, load: int) -> int:
    """So many that moving them takes `load` cycles."""
    return max(1, round(load * path.bytes_per_cycle / (_BLOCKS * BLOCK_BYTES)))
