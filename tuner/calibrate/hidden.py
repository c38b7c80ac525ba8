"""Hidden machines for tests of the calibration: every fitted value changed by a random factor."""

from __future__ import annotations

import numpy as np

from simulator.npu.machine import Machine
from tuner.calibrate.classes import fitted_keys
from tuner.calibrate.keys import Key, Number, read_value, with_values
from tuner.calibrate.queue import QUEUE

FACTORS = (0.7, 1.4)  # range of drawn values, relative to the described ones
_FROM_ZERO = 12  # cycles that a value of 0 may become
_LAUNCH = 3000  # cycles: most drawn for the launch


def hidden_machine(machine: Machine, seed: int) -> Machine:
    """Twin of a machine with another value for every fitted key."""
    rng = np.random.default_rng([seed, 24])
    return with_values(machine, {key.path: _draw_value(key, read_value(machine, key.path), rng) for key in (*fitted_keys(machine), QUEUE)})


def _draw_value(key: Key, value: Number, rng: np.random.Generator) -> Number:
    if key.choices:
        return int(rng.choice(key.choices[:3]))
    if not value:
        return int(rng.integers(_LAUNCH if key.path == "launch_cycles" else _FROM_ZERO))
    low, high = FACTORS
    return key.rounded(value * float(rng.uniform(low, high)))
