"""The simulator as a runner like any other: decodes the container and times what it finds.

For trying a runner's way through the farm without a board (`--runner tuner.measure.simulated:measure`), and as the shortest example of one.
The built-in runner, which is used where none is named, does not go through bytes.
"""

from __future__ import annotations

from simulator.npu.container import decode, program
from simulator.timing import simulate_levels
from tuner.measure.reading import Encoded, Reading


def measure(encoded: Encoded, level: str) -> Reading:
    """What the simulator says of the bytes."""
    container = decode(encoded.container)
    return Reading(simulate_levels(program(container, level), container.machine, [level])[level].cycles)
