"""Search for the depth of a queue by bisection: a program's time jumps at the first entry that does not fit."""

from __future__ import annotations

import math

from simulator.npu.machine import Machine
from tuner.calibrate.fit import FittedValue
from tuner.calibrate.keys import Key, with_values
from tuner.calibrate.probes import Probe, time_program
from tuner.calibrate.probes_flags import DEEPEST, queue_program
from tuner.calibrate.readings import ProbedBoard

QUEUE = Key("queue_depth", "entries", 1, DEEPEST, hidden="the longest probe fits the queue")
_READINGS = 7  # readings of each program: times differ by a third, far above noise
_TOLD = 0.1  # least difference of logarithms for a visible jump


def find_queue_depth(board: ProbedBoard, machine: Machine, load: int) -> FittedValue | None:
    """Depth of the queues of a machine with all other values fitted.  None where no probe exists."""
    load = max(load, 8 * DEEPEST * max(1, machine.issue_cycles))
    level = next(iter(machine.contention))
    fitting, too_many = 1, DEEPEST + 1
    while too_many - fitting > 1:
        entries = (fitting + too_many) // 2
        program = queue_program(board.machine, entries, load)
        if program is None:
            return None
        fits, stops = (
            math.log(time_program(program, with_values(machine, {QUEUE.path: depth}), level)) for depth in (entries, entries - 1)
        )
        if stops - fits < _TOLD:
            return FittedValue(QUEUE, machine.queue_depth, 0.0, fitting, too_many - 1)
        probe = Probe(f"queue of {entries}", level, program, None, 1)
        board.read("queue", [probe], _READINGS)
        log_cycles = math.log(board.observed(probe, 0.0).value)
        if abs(log_cycles - fits) < abs(log_cycles - stops):
            fitting = entries
        else:
            too_many = entries
    return (
        FittedValue(QUEUE, fitting, 0.0, fitting, DEEPEST if fitting < DEEPEST else 1 << 20)
        if fitting == DEEPEST
        else FittedValue(QUEUE, fitting, 0.0, fitting, fitting)
    )
