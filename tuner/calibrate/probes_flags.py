"""Probes of flags between cores, and of the depth of queues."""

from __future__ import annotations

from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import DataPath
from simulator.npu.parts import BLOCK_BYTES, Engine, Memory
from simulator.npu.program import Program
from tuner.calibrate.probes import Probe, repeat_body
from tuner.calibrate.programs import copy, flag, make_program, spare_instruction

DEEPEST = 1024  # largest queue depth searched
_BLOCKS = 32  # blocks of a burst, which is repeated


def flag_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    """Probe of two cores that wait for each other in turn; none on a machine with one core."""
    if machine.cores < 2:
        return ()
    scalar = Engine.SCALAR
    ping = [flag(Op.SET, scalar, scalar, 1), flag(Op.WAIT, scalar, scalar, 1)]
    pong = [flag(Op.WAIT, scalar, scalar, 0), flag(Op.SET, scalar, scalar, 0)]
    return (repeat_body("two cores in turn", machine, [ping, pong], load, per=2, grows=False),)


def queue_program(machine: Machine, entries: int, load: int) -> Program | None:
    """Program of `entries` in the vector unit's queue behind a wait for a long transfer, then a long transfer on another engine.

    The two transfers overlap if the queue holds all entries, and run one after the other if it does not: the scalar unit then stops at the
    queue, and issues the second transfer after the first has ended.  None on a machine without two engines for it.
    """
    inward, outward = machine.path(Memory.L1, Memory.UB), machine.path(Memory.UB, Memory.L1)
    if inward is None or outward is None or inward.engine == outward.engine or "VECTOR" in (inward.engine, outward.engine):
        return None
    far = machine.buffer_blocks(Memory.L1) // 2  # where the second transfer writes, away from the first one's blocks
    first_move = copy(machine, Memory.L1, Memory.UB, 0, 0, _BLOCKS, _bursts(inward, load))
    second_move = copy(machine, Memory.UB, Memory.L1, _BLOCKS, far, _BLOCKS, _bursts(outward, load))
    first_engine, vector = Engine[inward.engine], Engine.VECTOR
    no_time = [flag(Op.SET, vector, vector), flag(Op.WAIT, vector, vector)]  # takes no time
    filling = no_time * ((entries - 1) // 2) + ([spare_instruction(machine)] if entries % 2 == 0 else [])
    return make_program(
        machine, [[first_move, flag(Op.SET, first_engine, vector), flag(Op.WAIT, vector, first_engine), *filling, second_move]]
    )


def _bursts(path: DataPath, load: int) -> int:
    """Number of bursts whose transfer takes `load` cycles."""
    return max(1, round(load * path.bytes_per_cycle / (_BLOCKS * BLOCK_BYTES)))
