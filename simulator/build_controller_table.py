"""Building of the controller table: every variant simulated over shares of the bandwidth, and the thresholds that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.compiled import Compiled, CompiledPiece
from simulator.controller import ThresholdRule
from simulator.npu.controller_table import ControllerTable, GrantedRow, LevelRow, VariantRow
from simulator.npu.grant import Grant, combined_needs
from simulator.npu.machine import Machine
from simulator.response import Response, measure_rows, share_grid
from simulator.subgraph_sequence import simulate_all
from simulator.thresholds import ManualThresholds, Thresholds, choose_thresholds
from simulator.timing import Prepared


def controller_table(
    variants: Mapping[str, Sequence[Prepared]], made_for: Mapping[str, str], machine: Machine, needs: Mapping[str, Grant]
) -> ControllerTable:
    """Controller table of a compiled model.

    variants: first level of the variant -> programs of all subgraphs.  made_for: level -> its variant, if it has one.  needs: variant ->
    its need of memory and cores.
    """
    grid, names = share_grid(machine), list(variants)
    rows = measure_rows(variants, grid, needs)  # one simulation serves all rules

    def cost(name: str) -> tuple[int, int]:
        """Cycles at the level itself (least, sum): among levels of one share the grid has the least latency only."""
        fits = [programs for variant, programs in variants.items() if needs[variant].fits(machine.granted(name))]
        cycles = [simulate_all(programs, machine, machine.contention[name]).cycles for programs in fits or variants.values()]
        return min(cycles), sum(cycles)

    costs = {level: cost(level) for level in machine.contention}
    return table_of_rows(rows, grid, costs, {level: names.index(name) for level, name in made_for.items()}, machine)


def table_of_rows(
    rows: Sequence[VariantRow], grid: tuple[int, ...], costs: Mapping[str, tuple[int, int]], made_for: Mapping[str, int], machine: Machine
) -> ControllerTable:
    """Table of variants that are measured.  costs: of levels, by which they are in order.  made_for: variant of each level that has one."""
    response = Response.of(grid, rows)
    rule = choose_thresholds(response).rule  # the ladder without grants
    levels = {level: machine.contention[level] for level in sorted(machine.contention, key=lambda level: costs[level])}
    return ControllerTable(
        levels=tuple(
            LevelRow(name=name, share_units=level.share_units, latency_cycles=level.latency_cycles, variant=made_for.get(name))
            for name, level in levels.items()
        ),
        variants=tuple(rows),
        grid=grid,
        ladder=rule.ladder,
        t_min=rule.t_min,
        t_max=rule.t_max,
        slice_cycles=rule.slice_cycles,
        granted=tuple(_granted(response, tuple(Grant(row.l1_bytes, row.shared_bytes, row.cores) for row in rows), machine)),
    )


def _granted(response: Response, needs: tuple[Grant, ...], machine: Machine) -> Iterator[GrantedRow]:
    """A rule for each proper, non-empty set of variants that fit some level."""
    sets = {tuple(v for v, need in enumerate(needs) if need.fits(machine.granted(level))) for level in machine.contention}
    rows = {fitting: combined_needs(tuple(needs[v] for v in fitting)) for fitting in sets if 0 < len(fitting) < len(needs)}
    for fitting in sorted(rows, key=lambda fitting: rows[fitting], reverse=True):
        yield _row(rows[fitting], fitting, choose_thresholds(response.among(fitting)).rule)


def _row(granted: Grant, fitting: Sequence[int], rule: ThresholdRule) -> GrantedRow:
    """Row of the table.  rule: for the variants that fit, numbered within `fitting`."""
    return GrantedRow(**granted._asdict(), ladder=tuple(fitting[v] for v in rule.ladder), t_min=rule.t_min, t_max=rule.t_max)


def thresholds_of(compiled: Compiled, response: Response, by_hand: ManualThresholds) -> Thresholds:
    """Thresholds of a compiled file's variants, or of some of them.  Raises `BadInputError`."""
    names = response.variants
    cycles = [[variant_cycles for variant in names if (variant_cycles := compiled.cycles(variant)[name]) is not None] for name in names]
    return by_hand.thresholds(response, [(min(at_level), sum(at_level)) for at_level in cycles])


def with_rule(compiled: Compiled, table: ControllerTable, by_hand: ManualThresholds) -> tuple[Compiled, Thresholds]:
    """The file with other thresholds in its table, also for grants of levels.  table: its own.  Raises `BadInputError`."""
    response = Response.of(table.grid, table.variants)
    thresholds = thresholds_of(compiled, response, by_hand)
    granted = []
    for row in table.granted:
        grant = Grant(row.l1_bytes, row.shared_bytes, row.cores)
        fitting = [v for v in range(len(table.variants)) if table.needs(v).fits(grant)]
        granted.append(_row(grant, fitting, thresholds_of(compiled, response.among(fitting), by_hand).rule))
    rule = thresholds.rule
    values = {"ladder": rule.ladder, "t_min": rule.t_min, "t_max": rule.t_max, "slice_cycles": rule.slice_cycles, "granted": tuple(granted)}
    new_table = ControllerTable.model_validate({**dict(table), **values})
    pieces = (CompiledPiece(piece.name, replace(piece.container, controller=new_table)) for piece in compiled.pieces)
    return Compiled(tuple(pieces)), thresholds
