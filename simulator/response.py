"""Response of the variants to a share of the DDR bandwidth: simulated once on a grid, interpolated at run time.

A variant's time is, roughly, the larger of what it computes and what it moves at the bandwidth it gets, so cycles are close to
piecewise linear in the *slowness* 1 / share.  Between two shares of the grid all values are interpolated linearly in the slowness;
beyond its ends they stay as they are there.

| name     | shape  | meaning                                                          |
|----------|--------|------------------------------------------------------------------|
| variants | [V]    | names, in the order of the container                             |
| grid     | [G]    | shares in 1/65536, from light load (large) to heavy (small)      |
| cycles   | [V, G] | cycles of an inference                                           |
| balance  | [V, G] | rho: cycles with compute / cycles with loads or stores           |
| pace     | [V, G] | DMA-busy cycles per DDR byte: the bandwidth as a controller sees it |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import Compiled
from simulator.npu.controller_table import VariantRow
from simulator.npu.grant import Grant
from simulator.npu.level import SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.subgraph_sequence import simulate_all
from simulator.timing import Prepared

Floats = NDArray[np.float64]
GRID_POINTS = 25  # shares of the grid
_NOTHING = Grant(0, 0, 0)
_NO_DDR = 1e9  # rho without loads and stores: infinite, but interpolation needs a number


@dataclass(frozen=True, eq=False)
class Response:
    """Columns of the table above; pace is 0 for a variant without DDR traffic."""

    variants: tuple[str, ...]
    grid: tuple[int, ...]
    cycles: Floats
    balance: Floats
    pace: Floats

    @classmethod
    def of(cls, grid: Sequence[int], rows: Sequence[VariantRow]) -> Response:
        """Ratios of the counters of a table."""
        cycles, compute, moving = (
            np.array([getattr(row, column) for row in rows], np.float64) for column in ("cycles", "compute_cycles", "load_store_cycles")
        )
        size = np.array([max(1, row.ddr_bytes) for row in rows], np.float64)[:, None]
        balance = np.divide(compute, moving, out=np.full_like(compute, _NO_DDR), where=moving > 0)
        return cls(tuple(row.name for row in rows), tuple(grid), cycles, np.minimum(balance, _NO_DDR), moving / size)

    def among(self, variants: Sequence[int]) -> Response:
        """The response of some of the variants."""
        rows = list(variants)
        return Response(tuple(self.variants[v] for v in rows), self.grid, self.cycles[rows], self.balance[rows], self.pace[rows])

    @property
    def slowness(self) -> Floats:
        """float64 [G], ascending: 1 / share."""
        return SHARE_UNIT / np.array(self.grid, np.float64)

    def cycles_at(self, slowness: float) -> tuple[float, ...]:
        """Predicted cycles of every variant."""
        grid_slowness = self.slowness
        return tuple(float(np.interp(slowness, grid_slowness, row)) for row in self.cycles)

    def balance_at(self, variant: int, slowness: float) -> float:
        """rho of a variant."""
        return float(np.interp(slowness, self.slowness, self.balance[variant]))

    def slowness_of(self, variant: int, pace: float) -> float:
        """Slowness at which a variant has this pace."""
        # made monotone for `interp`: where the caps of the DMAs bind, several shares give equal pace
        return float(np.interp(pace, np.maximum.accumulate(self.pace[variant]), self.slowness))

    @property
    def steadiest(self) -> int:
        """The variant with the least geometric mean of cycles over the grid: the choice without observations."""
        return int(np.log(np.maximum(self.cycles, 1)).mean(axis=1).argmin())


def share_grid(machine: Machine, points: int = GRID_POINTS) -> tuple[int, ...]:
    """Shares from 1 to half of the heaviest level's share, evenly spaced by ratio, and the shares of the levels."""
    levels = [level.share_units for level in machine.contention.values()]
    lowest = max(1, min(levels) // 2)
    return tuple(sorted({*np.geomspace(SHARE_UNIT, lowest, points).round().astype(int).tolist(), *levels}, reverse=True))


def measure_rows(
    variants: Mapping[str, Sequence[Prepared]], grid: Sequence[int], needs: Mapping[str, Grant] | None = None
) -> tuple[VariantRow, ...]:
    """Simulate every variant at every share of the grid (in 1/65536); its programs run in sequence.  needs: need of each variant; None: 0.

    Each share has the latency of `Machine.load_latency` and the L2 of `Machine.l2_bytes_at`.
    """
    machine, rows = next(iter(variants.values()))[0].machine, []
    levels = [
        Level(share=share / SHARE_UNIT, latency_cycles=machine.load_latency(share), l2_bytes=machine.l2_bytes_at(share)) for share in grid
    ]
    for name, programs in variants.items():
        runs = [simulate_all(programs, machine, level) for level in levels]
        size = sum(p.ddr_read_bytes + p.ddr_write_bytes for p in programs)
        columns = {
            "cycles": tuple(run.cycles for run in runs),
            "compute_cycles": tuple(run.compute_cycles for run in runs),
            "load_store_cycles": tuple(run.load_store_cycles for run in runs),
        }
        l1_bytes, shared_bytes, cores = _NOTHING if needs is None else needs[name]
        rows.append(VariantRow(name=name, l1_bytes=l1_bytes, shared_bytes=shared_bytes, cores=cores, ddr_bytes=size, **columns))
    return tuple(rows)


def measure_response(variants: Mapping[str, Sequence[Prepared]], grid: Sequence[int]) -> Response:
    """The response of variants on a grid of shares, in any order."""
    shares = tuple(sorted(set(grid), reverse=True))
    return Response.of(shares, measure_rows(variants, shares))


def prepared_variants(compiled: Compiled) -> dict[str, tuple[Prepared, ...]]:
    """Distinct variants of a compiled model by the first level that names them, ready to be timed: a program of every piece."""
    return {level: compiled.prepared(level) for level in compiled.levels if compiled.same_as(level) is None}
