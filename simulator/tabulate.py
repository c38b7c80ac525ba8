"""The controller's table of a compiled model: every variant simulated over shares of the bandwidth, and the thresholds that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.npu.controller_table import ControllerTable, LevelRow
from simulator.npu.machine import Machine
from simulator.response import Response, measure_rows, share_grid
from simulator.sequence import simulate_all
from simulator.thresholds import choose_thresholds
from simulator.timing import Prepared


def controller_table(variants: Mapping[str, Sequence[Prepared]], made_for: Mapping[str, str], machine: Machine) -> ControllerTable:
    """variants: by the first level that names them, the programs of all pieces.  made_for: level -> its variant, where it has one."""
    grid, names = share_grid(machine), list(variants)
    rows = measure_rows(variants, grid)
    rule = choose_thresholds(Response.of(grid, rows)).rule

    def cost(name: str) -> tuple[int, int]:
        """At the level itself: of levels of one share the grid has the least latency only."""
        cycles = [simulate_all(programs, machine, machine.contention[name]).cycles for programs in variants.values()]
        return min(cycles), sum(cycles)

    return ControllerTable(
        levels=tuple(
            LevelRow(
                name=level,
                share_units=machine.contention[level].share_units,
                latency_cycles=machine.contention[level].latency_cycles,
                variant=names.index(made_for[level]) if level in made_for else None,
            )
            for level in sorted(machine.contention, key=cost)
        ),
        variants=rows,
        grid=grid,
        ladder=rule.ladder,
        t_min=rule.t_min,
        t_max=rule.t_max,
        slice_cycles=rule.slice_cycles,
    )
