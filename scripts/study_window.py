"""What a sliding window brings, and what it would cost to go without its limit.

For every network and seed a short search; then, per level, its best program again with the same cuts and blocks, and in its segments of
several operators

* sequence: block after block, operator after operator (W = 1, nothing interleaved);
* formula: list-scheduled, W = max(1, min(ceil(latency / II), floor((capacity - resident) / live bytes per block)));
* unlimited: list-scheduled without a limit (W = infinite), breadth-first, every block alive, in every segment in which that fits L1
  (`unlimited_segments`), by the formula in the others: what going without a limit is worth on the machine as it is;
* greedy: without a limit everywhere, otherwise as the formula's, in an L1 that is large enough; `formula_large_l1_cycles` is what such an
  L1 does for the formula's program;
* searched: the fastest of the search's own program (`own_cycles`), of the three before, and of the one in which every segment has the
  window that is fastest when it is measured alone.

`sequence` is a plan that was chosen with windows in mind, so it flatters them; `without_cycles` is the best program of a second search of
as many candidates that has no windows at all (`use.window=false`).  Peaks are those of L1; `greedy_over_formula_bytes` is the largest ratio
in one segment.  The table shows medians over seeds, the CSV every seed.

    python scripts/study_window.py --out window
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.frontend.zoo import shipped
from compiler.pipeline import Compiler, Part
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.space.decode import plan_of, realise
from compiler.space.gene import ALL, FORMULA, WINDOWS, Gene
from compiler.unit.unit import Unit
from scripts.studies import named, network, searched, short, write_rows
from simulator.npu.machine import Machine
from simulator.timing import simulate_levels
from tuner.commands.text import print_table
from tuner.prepared import prepared

LARGE_L1_BYTES = 1 << 26
FEWER_BYTES = 2.0  # the goal: greedy's peak over the formula's, somewhere
Cycles = dict[str, int]


def with_l1(machine: Machine, size_bytes: int) -> Machine:
    """The machine with another L1."""
    raw = machine.model_dump()
    raw["buffers_bytes"]["L1"] = size_bytes
    return Machine.model_validate(raw)


class Programs:
    """Segments of one unit, compiled and measured."""

    def __init__(self, unit: Unit) -> None:
        self.unit, self.compiler = unit, Compiler(unit)

    def whole(self, segments: Sequence[SegmentPlan]) -> tuple[Cycles, list[int]] | None:
        """Cycles of the program per level, and the peak of L1 in bytes per segment; None where a segment does not fit."""
        parts = self.compiler.parts(plan_of(self.unit, list(segments)))
        if isinstance(parts, Infeasible):
            return None
        peaks = [0] * len(segments)
        for part in parts:
            peaks[part.segment] = max(peaks[part.segment], part.lowered.peak_bytes["L1"])
        return self._cycles(parts), peaks

    def alone(self, segment: SegmentPlan, start: int) -> Cycles | None:
        """Cycles of one segment per level; None where it does not fit."""
        parts = self.compiler.alone(segment, start)
        return None if isinstance(parts, Infeasible) else self._cycles(parts)

    def _cycles(self, parts: Sequence[Part]) -> Cycles:
        footprints = [part.lowered.footprint for part in parts]
        program = prepared(self.unit.machine, self.compiler.schedule(parts), footprints)
        return {level: timing.cycles for level, timing in simulate_levels(program, self.unit.machine).items()}


def slides(unit: Unit, gene: Gene) -> bool:
    """Whether there is anything to schedule: several operators, several blocks or images."""
    return gene.stop - gene.start > 1 and gene.blocks * unit.storages[0].n > 1


def planned(programs: Programs, gene: Gene, level: str) -> dict[str, SegmentPlan]:
    """The segment as its gene has it, in sequence, by the formula, without a limit, and with the window that is fastest at a level."""
    unit = programs.unit
    ours = realise(unit, gene)
    assert ours is not None
    plain = realise(unit, gene._replace(window=1, sliding=False)) or ours
    if gene.stop - gene.start == 1:
        return dict.fromkeys(("ours", "sequence", "formula", "unlimited", "fastest"), ours)
    choices = [realise(unit, gene._replace(window=window, sliding=True)) for window in WINDOWS]
    formula, unlimited = choices[WINDOWS.index(FORMULA)], choices[WINDOWS.index(ALL)]
    measured = [(plan, programs.alone(plan, gene.start)) for plan in (plain, ours, *choices) if plan is not None]
    fits = [plan for plan, cycles in measured if cycles is not None]
    fastest = min((cycles[level], i) for i, (_, cycles) in enumerate(measured) if cycles is not None)[1]
    by_formula = formula if formula in fits else plain
    without_limit = unlimited if unlimited in fits else by_formula
    return {"ours": ours, "sequence": plain, "formula": by_formula, "unlimited": without_limit, "fastest": measured[fastest][0]}


def study(name: str, machine: str, candidates: int, seed: int) -> Iterator[dict[str, Any]]:
    """A row per level."""
    unit = network(name, machine)
    champions = searched(unit, ("use.cores=false",), seed, candidates).champions
    without = searched(unit, ("use.cores=false", "use.window=false"), seed, candidates).champions
    here, roomy = Programs(unit), Programs(replace(unit, machine=with_l1(unit.machine, LARGE_L1_BYTES)))
    for at, level in enumerate(unit.machine.contention):
        best, unslid = champions.best[at], without.best[at]
        assert best is not None
        assert unslid is not None
        sliding = [slides(unit, gene) for gene in best.genome]
        plans = [planned(here, gene, level) for gene in best.genome]
        found = {kind: here.whole([plan[kind] for plan in plans]) for kind in ("ours", "sequence", "formula", "unlimited", "fastest")}
        greedy = [
            plan["formula"].model_copy(update={"window": "all", "sliding": True}) if slide else plan["formula"]
            for plan, slide in zip(plans, sliding, strict=True)
        ]
        roomily, without_limit = (
            roomy.whole(greedy),
            [plan["unlimited"].window == "all" and slide for plan, slide in zip(plans, sliding, strict=True)],
        )
        formula, formula_there = found["formula"], roomy.whole([plan["formula"] for plan in plans])
        assert roomily is not None
        assert formula_there is not None
        assert formula is not None
        feasible = [result for result in found.values() if result is not None]
        ours = min(feasible, key=lambda result: result[0][level])
        own, sequence, unlimited = found["ours"], found["sequence"], found["unlimited"]
        assert own is not None
        assert sequence is not None
        assert unlimited is not None
        policies = {"sequence": sequence, "formula": formula, "unlimited": unlimited, "greedy": roomily, "own": own, "searched": ours}
        ratios = [wide / narrow for wide, narrow, slide in zip(roomily[1], formula[1], sliding, strict=True) if slide]
        windows = [str(plan["formula"].window) for plan, slide in zip(plans, sliding, strict=True) if slide]
        yield {
            "network": short(name),
            "level": level,
            "seed": seed,
            "segments": len(plans),
            "sliding_segments": sum(sliding),
            "formula_windows": " ".join(windows),
            **{f"{kind}_cycles": cycles[level] for kind, (cycles, _) in policies.items()},
            **{f"{kind}_peak_l1_bytes": max(peaks) for kind, (_, peaks) in policies.items()},
            "formula_large_l1_cycles": formula_there[0][level],
            "without_cycles": int(unslid.cycles[at]),
            "greedy_over_formula_bytes": max(ratios, default=1.0),
            "unlimited_segments": sum(without_limit),
            "candidates": candidates,
        }


def medians(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Per network and level, over seeds: how many times faster than in sequence, and peaks."""
    for name, level in dict.fromkeys((row["network"], row["level"]) for row in rows):
        mine = [row for row in rows if (row["network"], row["level"]) == (name, level)]
        yield {
            "network": name,
            "level": level,
            "sequence_cycles": median(row["sequence_cycles"] for row in mine),
            **{
                kind: median(row["sequence_cycles"] / row[f"{kind}_cycles"] for row in mine)
                for kind in ("formula", "unlimited", "searched", "greedy")
            },
            "search": median(row["without_cycles"] / row["searched_cycles"] for row in mine),
            **{f"{kind}_bytes": median(row[f"{kind}_peak_l1_bytes"] for row in mine) for kind in ("formula", "unlimited", "searched")},
            "greedy_bytes": median(row["greedy_peak_l1_bytes"] for row in mine),
            "bytes": median(row["greedy_over_formula_bytes"] for row in mine),
            "slower": sum(row["searched_cycles"] > row["unlimited_cycles"] for row in mine),
            "own_slower": sum(row["own_cycles"] > row["unlimited_cycles"] for row in mine),
            "order_slower": sum(row["formula_large_l1_cycles"] > row["greedy_cycles"] for row in mine),
            "fits": sum(row["unlimited_segments"] for row in mine),
            "sliding": sum(row["sliding_segments"] for row in mine),
            "seeds": len(mine),
        }


def show(table: Sequence[dict[str, Any]]) -> None:
    """Table, geometric means, goals."""
    gains = ("formula", "unlimited", "searched", "greedy", "search")
    columns = ("<network", "<level", "sequence", *gains, "formula B", "unlimited B", "searched B", "greedy B", "most, x", "unlimited fits")
    rows = [
        (
            row["network"],
            row["level"],
            round(row["sequence_cycles"]),
            *(f"{row[kind]:.3f}x" for kind in gains),
            *(round(row[f"{kind}_bytes"]) for kind in ("formula", "unlimited", "searched", "greedy")),
            f"{row['bytes']:.2f}",
            f"{row['fits']} of {row['sliding']}",
        )
        for row in table
    ]
    print_table(columns, rows)
    print("formula, unlimited, searched, greedy: of the same segments in sequence; search: of a search without windows")
    for level in dict.fromkeys(row["level"] for row in table):
        means = {kind: geometric_mean(row[kind] for row in table if row["level"] == level) for kind in gains}
        print(f"{level}, geometric means: " + ", ".join(f"{kind} {gain:.3f}x" for kind, gain in means.items()))
    goals = {
        "slower": "searched never slower than unlimited",
        "own_slower": "nor the search's own program",
        "order_slower": "formula never slower than greedy, both in a large L1",
    }
    for key, goal in goals.items():
        missed = [f"{row['network']} {row['level']} ({row[key]} of {row['seeds']})" for row in table if row[key]]
        print(f"{goal}: {'reached' if not missed else 'not reached: ' + ', '.join(missed)}")
    most = max(row["bytes"] for row in table)
    reached = "reached" if most >= FEWER_BYTES else "not reached"
    print(f"a peak lower than greedy's by {FEWER_BYTES:g} or more somewhere: {reached} ({most:.2f})")


def main(
    out: Annotated[Path, typer.Option(help="folder for window.csv and window_medians.csv")],
    networks: Annotated[str, typer.Option(help="names, separated by commas")] = ",".join(map(short, shipped())),
    machine: Annotated[str, typer.Option(help="preset or YAML file")] = "edge",
    candidates: Annotated[int, typer.Option(help="measured programs of every search")] = 64,
    seeds: Annotated[int, typer.Option(help="searches of every network, seeds from 0")] = 3,
) -> None:
    """Sequence, formula, greedy and searched windows of the same segments."""
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for name in named(networks):
            rows += study(name, machine, candidates, seed)
            write_rows(out / "window.csv", rows)
            typer.echo(f"seed {seed}, {name}: done", err=True)
    table = list(medians(rows))
    write_rows(out / "window_medians.csv", table)
    show(table)


if __name__ == "__main__":
    typer.run(main)
