"""Several cores: what placement brings over one core, and over every segment on all cores; barriers against flags; what clustering saves.

Three searches of the same number of measured programs, for every network, machine and seed:

  one     everything on core 0, which has the DDR port to itself (use.cores=false);
  all     every segment split over all cores, by rows or channels, and tuned so: cuts, blocks, tilings (parallelism inside operators);
  placed  any cores: placement and moves propose (the default).

`placed` looks at one-core and all-core programs as well, on the same budget, so nothing but the search itself makes it no worse.  All three
use the first estimate of segments in place of a cost model, so no run learns from another.

    python scripts/study_placement.py --out placement.csv
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from compiler.frontend import load_model, lower
from compiler.frontend.zoo import MADE, PREFIX, resolve
from compiler.kinds.build import make_unit
from compiler.pipeline import Compiler
from compiler.place.bounds import Bounds, bounds
from compiler.place.dag import Dag
from compiler.place.segments import segment_edges
from compiler.plan.plan import Infeasible
from compiler.space.decode import realise_all
from compiler.space.gene import Gene, Genome, block_counts, widths, working_cores
from compiler.space.order import ordered
from compiler.space.starts import single_operators
from compiler.unit.unit import Unit
from scripts.studies import searched
from simulator.npu.errors import BadInputError
from simulator.npu.machine import DataType, Machine, load_machine
from simulator.timing import simulate_levels
from tuner.commands.text import print_table
from tuner.config import TuneConfig, load_config
from tuner.evaluate import COLUMNS, Answer, Ask, Evaluator
from tuner.search.knowledge import Knowledge
from tuner.search.placing import Placer, cut_of
from tuner.search.population import Individual

_NEVER = 1 << 60  # cycles of what cannot run so
THESIS = 28.98  # per cent over parallelism inside operators, at most, in the work that the method is from
OVER_ONE, OVER_ALL = 1.6, 1.05  # the goals
CYCLES, READ, WRITTEN = (COLUMNS.index(name) for name in ("cycles", "ddr_read_bytes", "ddr_write_bytes"))
BUSY = [COLUMNS.index(f"busy_{name}_cycles") for name in ("mte1", "mte2", "mte3", "cube", "vector", "fixpipe")]


class Remembering(Evaluator):
    """Answers that earlier searches of the unit got are given again."""

    def __init__(self, unit: Unit, levels: tuple[str, ...]) -> None:
        super().__init__(unit, levels)
        self._told: dict[Ask, Answer] = {}

    def answer(self, ask: Ask) -> Answer:
        found = self._told.get(ask)
        if found is None:
            found = self._told[ask] = super().answer(ask)
        return found


MODES: dict[str, tuple[str, ...]] = {"one": ("use.cores=false",), "all": ("use.placement=false",), "placed": ()}


def opened(name: str, machine: Machine) -> Unit:
    """A network by its name, on a machine, without its weights' values, in a search's order."""
    path, seed = resolve(Path(name), None)
    unit = make_unit(lower(load_model(path, random_weights=seed)), machine, DataType.float16)
    return ordered(unit, load_config().search.order)


def machine_of(base: str, text: str) -> Machine:
    """`4x268`: the base machine with 4 cores, which share 268 bytes per cycle of DDR."""
    cores, _, port = text.partition("x")
    if not (cores.isdigit() and port.isdigit() and int(cores) > 1 and int(port) > 0):
        raise BadInputError(f"--shapes {text}: expected CORESxBYTES, such as 2x67, with 2 cores or more")
    return load_machine(f"{base}:cores={cores},ddr.bytes_per_cycle={port}")


def study(name: str, machine: Machine, candidates: int, seeds: int) -> dict[str, Any]:
    """A row: medians over the seeds, of ratios as well."""
    begun = time.monotonic()
    unit = opened(name, machine)
    evaluator = Remembering(unit, ("none",))
    found: dict[str, list[int]] = {mode: [] for mode in MODES}
    tasks: dict[str, list[int]] = {mode: [] for mode in MODES}
    limits, last = list[Bounds](), None
    for seed in range(seeds):
        for mode in MODES:
            search = searched(unit, ["use.cost_model=false", *MODES[mode]], seed, candidates, lambda: evaluator)
            best = search.champions.best[0]
            assert best is not None
            found[mode].append(int(best.cycles[0]))
            tasks[mode].append(search.tasks)
            if mode == "placed":
                as_compiled(unit, best)
                limits.append(bounds_of(unit, evaluator, best.genome))
                last = search.known
    assert last is not None
    cycles = {mode: round(median(values)) for mode, values in found.items()}
    short = name.removeprefix(MADE).removeprefix(PREFIX)
    row: dict[str, Any] = {"network": short, "cores": machine.cores, "ddr": machine.ddr.bytes_per_cycle}
    row |= {f"{mode}_cycles": value for mode, value in cycles.items()}
    # a seed's searches begin with the same segments, so its own ratio tells more than that of two medians
    over = {mode: [a / p for a, p in zip(found[mode], found["placed"], strict=True)] for mode in ("one", "all")}
    row |= {"over_one": median(over["one"]), "over_all": median(over["all"]), "worst_over_all": min(over["all"])}
    placed = list(zip(limits, found["placed"], strict=True))
    row |= {"gap": median(b.gap(c) for b, c in placed)}
    row |= {"work_share": median(b.work / c for b, c in placed), "path_share": median(b.path / c for b, c in placed)}
    row |= {"port_share": median(b.bandwidth / c for b, c in placed)}
    row |= {f"{mode}_tasks": round(median(values)) for mode, values in tasks.items()}
    row |= operators_alone(unit, evaluator)
    row |= staged(last, evaluator)
    return row | {"candidates": candidates, "seeds": seeds, "wall_s": round(time.monotonic() - begun, 1)}


def as_compiled(unit: Unit, best: Individual) -> None:
    """The champion's own streams take what it was measured to take."""
    plan = realise_all(unit, best.genome)
    assert not isinstance(plan, Infeasible)
    program = Compiler(unit).compile(plan)
    assert not isinstance(program, Infeasible)
    cycles = simulate_levels(program, unit.machine, ("none",))["none"].cycles
    if cycles != best.cycles[0]:
        raise RuntimeError(f"{unit.graph.name}: a champion of {best.cycles[0]} cycles takes {cycles} when it is compiled")


def operators_alone(unit: Unit, evaluator: Evaluator) -> dict[str, int]:
    """Cycles of all operators one by one, each in the best of the first four block counts that fit: on one core; on as many as is best when
    they share rows; when they share rows or channels."""
    singles = single_operators(unit)
    assert not isinstance(singles, Infeasible)
    structures, best = evaluator.structures, dict[str, tuple[int, ...]]()
    names, total = ("one", "rows", "either"), [0, 0, 0]
    for k in range(len(unit.kernels)):
        name = structures.structure(k, k + 1)
        if name not in best:
            found, least = dict.fromkeys(names, _NEVER), singles[k].blocks
            for width in widths(unit):
                counts = [b for b in sorted({least, *block_counts(unit, k, k + 1)}) if b >= least and b * unit.images >= width]
                genes = [singles[k], *(Gene(k, k + 1, blocks, cores=tuple(range(width)), cached=-1) for blocks in counts[:4])]
                genes += [Gene(k, k + 1, blocks, cores=tuple(range(width)), split="channels") for blocks in (1, 3) if width > 1]
                for gene in genes:
                    values = evaluator.answer(Ask("segment", (gene,))).values
                    for form in names[2 if gene.split == "channels" else min(len(gene.cores) - 1, 1) :] if values is not None else ():
                        found[form] = min(found[form], int(values[0, CYCLES]))
            best[name] = tuple(found[form] for form in names)
        total = [a + b for a, b in zip(total, best[name], strict=True)]
    return {f"alone_{form}_cycles": cycles for form, cycles in zip(names, total, strict=True)}


def bounds_of(unit: Unit, evaluator: Evaluator, genome: Genome) -> Bounds:
    """What a program's own segments are bound by: the work of their busiest engines over the cores, their longest path, and the port.

    A segment takes at least what its busiest engine does, alone, on as many cores as it has: no overlap with others saves any of that.
    """
    times = []
    for gene in genome:
        values = evaluator.answer(Ask("segment", (gene,))).values
        assert values is not None
        width = len(working_cores(unit, gene))
        times.append({width: -(-int(values[0, BUSY].max()) // width)})
    dag = Dag.of([next(iter(t.values())) for t in times], segment_edges(unit, genome))
    values = evaluator.answer(Ask("program", genome)).values
    assert values is not None
    moved, machine = int(values[0, [READ, WRITTEN]].sum()), unit.machine
    return bounds(dag, times, machine.cores, moved, machine.ddr.bytes_per_cycle)


def staged(known: Knowledge, evaluator: Evaluator) -> dict[str, Any]:
    """Stages of the cheapest covers by segments of one and of two operators: barriers, flags, and states with and without clusters.

    With barriers: the sum of its stages, each measured from idle cores to idle cores.  By flags: the same segments on the same cores as a
    program.  Listed: the best of the list schedules of the cut.
    """
    placer, border = Placer(known.table, ("none",), load_config().placement), float(known.border[0])
    out: dict[str, Any] = {}

    def measured(kind: Any, genome: Genome) -> int:
        values = evaluator.answer(Ask(kind, genome)).values
        assert values is not None
        return int(values[0, CYCLES])

    for longest in (1, 2):
        cover = known.table.cover(0, border, longest=longest, width=1)
        pieces = None if cover is None else placer.pieces(cut_of(cover[0]), 0, border)
        keys = ("segments", "states", "states_without", "stages_measured", "barriers_cycles", "flags_cycles", "listed_cycles")
        row: dict[str, Any] = dict.fromkeys(keys)
        if pieces is not None:
            row |= {"segments": len(pieces.dag), "listed_cycles": min(measured("program", genome) for _, genome in placer.listed(pieces))}
            without = placer.states(placer.quotient(pieces, clustered=False))
            row["states_without"] = None if without is None else len(without.sets)
            found = placer.staged(pieces, lambda stages: [stage_cycles(evaluator, genes) for genes in stages], 0, border)
            if found is not None:
                row |= {"states": found.partition.states, "stages_measured": found.partition.measured}
                row["barriers_cycles"] = sum(measured("stage", genes) for genes in found.stages)
                row["flags_cycles"] = min(measured("program", genome) for genome in (found.genome, *found.listed))
        out |= {f"{key}_{longest}": value for key, value in row.items()}
    return out


def stage_cycles(evaluator: Evaluator, genes: Genome) -> Any:
    values = evaluator.answer(Ask("stage", genes)).values
    return None if values is None else values[:, CYCLES]


def report(rows: list[dict[str, Any]], limit: int) -> None:
    """The tables of placements, operators and stages, and the goals with what was reached.

    work, path, port: shares of the placed program's time that its busiest engines over the cores, its longest path and its bytes need.
    """
    names = ["<network", "cores", "DDR B/cycle", "one", "all", "placed", "over one", "over all", "worst seed"]
    names += ["work", "path", "port", "gap"]
    print_table(
        names,
        [
            [r["network"], r["cores"], r["ddr"], r["one_cycles"], r["all_cycles"], r["placed_cycles"]]
            + [f"{r['over_one']:.2f}", f"{r['over_all']:.3f}", f"{r['worst_over_all']:.3f}"]
            + [*(f"{r[f'{bound}_share']:.0%}" for bound in ("work", "path", "port")), f"{r['gap']:+.1%}"]
            for r in rows
        ],
    )
    print("\noperators one by one, each at its best: on one core, sharing rows, sharing rows or channels; one core's time over the cores")
    names = ["<network", "cores", "DDR B/cycle", "one core", "rows", "and channels", "over one: rows", "and channels", "one / cores"]
    forms = [[r[f"alone_{form}_cycles"] for form in ("one", "rows", "either")] for r in rows]
    print_table(
        names,
        [
            [r["network"], r["cores"], r["ddr"], *alone, f"{alone[0] / alone[1]:.2f}", f"{alone[0] / alone[2]:.2f}", alone[0] // r["cores"]]
            for r, alone in zip(rows, forms, strict=True)
        ],
    )
    print("\nstages of segments of at most so many operators: DP with barriers, the same by flags, list schedules alone")
    names = ["<network", "cores", "DDR B/cycle", "operators", "segments", "states", "unclustered", "measured"]
    print_table(
        [*names, "barriers", "flags", "gain", "listed"],
        [
            [r["network"], r["cores"], r["ddr"], n, r[f"segments_{n}"]]
            + [_states(r[f"{key}_{n}"], limit) for key in ("states", "states_without")]
            + [r[f"stages_measured_{n}"], r[f"barriers_cycles_{n}"], r[f"flags_cycles_{n}"], _over(r, n), r[f"listed_cycles_{n}"]]
            for r in rows
            for n in (1, 2)
        ],
    )
    print("\ngoals")
    two = [r for r in rows if r["cores"] == 2]
    for r in two:
        verdict = "reached" if r["over_one"] >= OVER_ONE else f"not reached; the port is busy {r['port_share']:.0%} of the time"
        case = f"{r['network']}, 2 cores, {r['ddr']} B/cycle"
        print(f"  {case}: {r['over_one']:.2f} over one core (goal {OVER_ONE} where bandwidth permits): {verdict}")
    least = min(rows, key=lambda r: r["over_all"])
    print(f"  least over all cores: {least['over_all']:.3f} ({least['network']}, {least['cores']} cores; goal: never below 1)")
    better = {r["network"] for r in rows if r["over_all"] >= OVER_ALL}
    print(f"  at least {OVER_ALL} over all cores on {len(better)} networks ({', '.join(sorted(better)) or 'none'}; goal: two)")
    most = max(rows, key=lambda r: r["over_all"])
    print(
        f"  most over all cores: {most['over_all'] - 1:+.2%} ({most['network']}, {most['cores']} cores, {most['ddr']} B/cycle); "
        f"the thesis has up to {THESIS}%, on its machine and networks"
    )


def _states(count: int | None, limit: int) -> str:
    return f"> {limit:,}" if count is None else f"{count:,}"


def _over(row: dict[str, Any], longest: int) -> str:
    barriers, flags = row[f"barriers_cycles_{longest}"], row[f"flags_cycles_{longest}"]
    return "" if barriers is None else f"{barriers / flags:.3f}"


def main(
    out: Annotated[Path | None, typer.Option(help="CSV of the rows.")] = None,
    networks: Annotated[str, typer.Option(help="Comma-separated: light:NAME, made:NAME or files.")] = (
        "made:inception_v3,made:nasnet_mobile,light:squeezenet,made:randwire"
    ),
    machine: Annotated[str, typer.Option(help="Machine whose cores are used.")] = "ascend310",
    shapes: Annotated[str, typer.Option(help="Comma-separated CORESxBYTES: cores, and bytes per cycle of the DDR that they share.")] = (
        "2x134,4x268"
    ),
    candidates: Annotated[int, typer.Option(min=1, help="Measured programs of each search.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="Searches of each kind; medians are reported.")] = 3,
) -> None:
    """Print the tables; every network with every shape, one after the other."""
    rows = []
    for name in networks.split(","):
        for shape in shapes.split(","):
            rows.append(study(name, machine_of(machine, shape), candidates, seeds))
            r = rows[-1]
            typer.echo(f"{r['network']} {shape}: over one {r['over_one']:.2f}, over all {r['over_all']:.3f}, {r['wall_s']} s", err=True)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                with out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, r)
                    writer.writeheader()
                    writer.writerows(rows)
    config: TuneConfig = load_config()
    report(rows, config.placement.states)


if __name__ == "__main__":
    typer.run(main)
