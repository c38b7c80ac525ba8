"""The DDR port: rates of concurrent transfers.

All DMAs of all cores draw from one port.  A background load takes its part first and leaves `port_units`, or `turned_units` where reads
and writes are active together, because the bus turns between batches of them.  The remainder is shared max-min fairly among the transfers
in their data phase, each capped by its engine (water-filling; Bertsekas & Gallager, Data Networks, 6.5.2).  There are only two caps, MTE2's
and MTE3's, so the rates depend only on the number of active transfers of each, and one small table holds them all.

| name  | dtype, shape                               | meaning                                                              |
|-------|--------------------------------------------|----------------------------------------------------------------------|
| rates | int64 [load ports + 1, store ports + 1, 2] | [active MTE2, active MTE3] -> rate of each MTE2, each MTE3 transfer  |

Ports are DMA ports of all cores, so they limit the active transfers of each kind.

Rates are in 1/65536 bytes per cycle, rounded down, at least 1: time stays integer and a transfer always ends.
A rate never falls when a transfer fewer is active or the share grows: with reads and writes active together the port is always slower.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.npu.cycles import cap_units, port_units, turned_units
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.parts import Engine

Rates = NDArray[np.int64]


def check_share(share_units: int, where: str = "share_units") -> None:
    """Check that a share is in 1..65536.  Raises `BadInputError`."""
    if not 1 <= share_units <= SHARE_UNIT:
        raise BadInputError(f"{where}: {share_units} is not a share of the DDR bandwidth; accepted: 1..{SHARE_UNIT} (in 1/{SHARE_UNIT})")


def shared_rates(machine: Machine, share_units: int, cores: int) -> Rates:
    """Max-min fair rates for every number of active transfers (see the table at the top)."""
    check_share(share_units)
    return _shared_rates(machine, share_units, cores).copy()


def _most_active(machine: Machine, cores: int) -> tuple[int, int]:
    return cores * machine.dma.load_ports, cores * machine.dma.store_ports


@lru_cache(maxsize=256)
def _shared_rates(machine: Machine, share_units: int, cores: int) -> Rates:
    caps = (cap_units(machine, Engine.MTE2), cap_units(machine, Engine.MTE3))
    low, high = (0, 1) if caps[0] <= caps[1] else (1, 0)
    loads, stores = _most_active(machine, cores)
    count = np.indices((loads + 1, stores + 1), np.int64)
    n_low, n_high = count[low], count[high]
    port = np.where((n_low > 0) & (n_high > 0), turned_units(machine, share_units), port_units(machine, share_units))
    n = np.maximum(n_low + n_high, 1)
    # the lower cap binds if all transfers could have it; the other transfers get the remainder
    binds = caps[low] * n <= port
    even = port // n
    high_rate = np.minimum(caps[high], (port - caps[low] * n_low) // np.maximum(n_high, 1))
    rates = np.empty((*port.shape, 2), np.int64)
    rates[..., low] = np.where(binds, caps[low], even)
    rates[..., high] = np.where(binds, high_rate, even)
    return np.maximum(rates, 1)


def lone_rates(machine: Machine, share_units: int, cores: int, divisor: int = 1) -> Rates:
    """Rates without contention between transfers: min(cap, port // divisor), independent of the active ones.

    divisor: above 1, the port has the rate of alternating reads and writes; the rate is then a lower bound for that many transfers.
    """
    check_share(share_units)
    if divisor < 1:
        raise BadInputError(f"rate_divisor: {divisor}; accepted: 1 or more")
    port = (turned_units if divisor > 1 else port_units)(machine, share_units) // divisor
    loads, stores = _most_active(machine, cores)
    rates = np.empty((loads + 1, stores + 1, 2), np.int64)
    for k, engine in enumerate((Engine.MTE2, Engine.MTE3)):
        rates[..., k] = max(1, min(cap_units(machine, engine), port))
    return rates


@dataclass(frozen=True)
class ContentionTrace:
    """The share of the port left by a background load, piecewise constant: from cycles[i] on, share_units[i] (in 1/65536).

    cycles start at 0 and ascend strictly; the last share has no end.
    """

    cycles: tuple[int, ...]
    share_units: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.cycles or len(self.cycles) != len(self.share_units) or self.cycles[0] != 0:
            raise BadInputError("contention trace: needs one share per cycle, the first at cycle 0")
        if any(a >= b for a, b in zip(self.cycles, self.cycles[1:], strict=False)):
            raise BadInputError("contention trace: cycles must ascend strictly")
        for cycle, share in zip(self.cycles, self.share_units, strict=True):
            check_share(share, f"contention trace at cycle {cycle}")

    @classmethod
    def constant(cls, share_units: int) -> ContentionTrace:
        """Constant share, without end."""
        return cls((0,), (share_units,))

    @classmethod
    def of(cls, steps: Sequence[tuple[int, int]]) -> ContentionTrace:
        """A trace of (cycle, share_units) pairs."""
        return cls(tuple(cycle for cycle, _ in steps), tuple(share for _, share in steps))

    def share_at(self, cycle: int) -> int:
        """The share in force in a cycle."""
        return self.share_units[self._step(cycle)]

    def changes(self, start: int, end: int) -> int:
        """Number of steps that begin in (start, end)."""
        return max(0, bisect_left(self.cycles, end) - self._step(start) - 1)

    def after(self, cycle: int, changes: int | None = None) -> ContentionTrace:
        """Load of an inference that starts at `cycle`.  changes: keep only that many first steps; None: all."""
        i = self._step(cycle)
        stop = len(self.cycles) if changes is None else i + 1 + changes
        return ContentionTrace((0, *(c - cycle for c in self.cycles[i + 1 : stop])), self.share_units[i:stop])

    def _step(self, cycle: int) -> int:
        if cycle < 0:
            raise BadInputError(f"contention trace: cycle {cycle}; accepted: 0 or more")
        return bisect_right(self.cycles, cycle) - 1
