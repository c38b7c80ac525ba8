"""Study of levels: one variant per level against one program for all levels.

For every network, machine and seed: one search for all levels, and one for each single level, with the same budget.  Their programs are
timed at every level; the loss of a program is its cycles over the fewest of all of them at that level.  A level may grant less memory than
another: programs that do not fit there have no loss there, and are counted.

* one level only: programs tuned for one level, at the others; the largest loss of any where it fits.
* does not fit: how often a program tuned for a level does not fit another one; sums over the seeds.
* robust: the program of the first search with the smallest largest loss.
* two, own: the two of champions and robust program with the smallest joint loss, as measured by that search; the champion of every level.
* variants pay: cycles of the robust program over those of the level's champion, at the level with the largest ratio.
* stream: bytes of instructions, the most of any level's champion, and of the robust program.
* changed: levels that ship another program than the champion, because the champion is slower out of sample.

`--guard` shows only the out-of-sample guard, its cost and its benefit, at several budgets: losses of the shipped programs with and without
it, over the level's champion on the described machine, and over the fastest of the champions and the robust program out of sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import typer

from compiler.build import compile_plan
from compiler.pipeline import Compiler
from scripts.studies import MEAN, PAIR, SHIPPED, Arm, Pair, Row, Study, Table, geometric, groups, medians
from scripts.traffic import stream_bytes
from simulator.npu.machine import Machine
from simulator.npu.program import Program
from simulator.timing import simulate_levels
from tuner.selection.out_of_sample import CONDITIONS, out_of_sample
from tuner.selection.robust import Floats, best_variants, losses
from tuner.selection.robustness_filter import settle_variants

LEVELS = ("none", "slight", "severe")
FAST = "edge:ddr.bytes_per_cycle=192,paths.*DDR*.bytes_per_cycle=192,buffers_bytes.L1=393216"
FAST += ",contention.severe.share=0.0625,contention.severe.latency_cycles=450"  # by the rule of `edge`, which `configs/machines` has
GRANTED = "edge:contention.severe.l1_bytes=524288"
"""One machine with a fast port and little memory, on which a level is further from the other, one on which others take half of L1."""
SHOWN = ("only_none", "only", "robust", "two", "own", "pay")
STREAMS = ("own_stream", "robust_stream")


def rows(pair: Pair) -> Iterator[Row]:
    """Row per level: cycles of all programs, losses, and whether the guard changes the shipped program."""
    result, compiler, machine = pair.results["all"], Compiler(pair.target_graph), pair.target_graph.machine
    robust = result.robust
    assert robust is not None, "every program was measured at every level"
    plans = {**{f"own_{level}": result.plan(level) for level in LEVELS}, "robust": robust}
    plans |= {f"only_{level}": pair.results[level].plan(level) for level in LEVELS}
    programs = {name: compile_plan(compiler, plan) for name, plan in plans.items()}
    timings = {name: simulate_levels(program, machine, LEVELS) for name, program in programs.items()}
    cycles = {
        name: [timings[name][level].cycles if program.needs.fits(machine.granted(level)) else None for level in LEVELS]
        for name, program in programs.items()
    }
    loss = dict(zip(cycles, losses(np.array([*cycles.values()], np.float64)).tolist(), strict=True))  # NaN where it does not fit
    ship = [f"own_{level}" for level in LEVELS] + ["robust"]
    table = np.array([cycles[name] for name in ship], np.float64)
    two = best_variants(table, 2)
    times = elsewhere([programs[name] for name in ship], table, machine, LEVELS)
    moved = {variant.level: variant.over for variant in settle_variants(tuple(range(len(LEVELS))), times, len(LEVELS)).displaced}
    for index, level in enumerate(LEVELS):
        pick = two[index]
        assert pick is not None
        columns = {f"only_{name}": None if cycles[f"only_{name}"][index] is None else loss[f"only_{name}"][index] for name in LEVELS}
        columns |= {"robust": loss["robust"][index], "two": loss[ship[pick]][index], "own": loss[f"own_{level}"][index]}
        variant = {f"{name}_cycles": values[index] for name, values in cycles.items()}
        variant |= {"own_stream": stream_bytes(programs[f"own_{level}"]), "robust_stream": stream_bytes(programs["robust"])}
        yield {"level": level, **columns, "changed": int(index in moved), "changed_over": float(moved.get(index, 0.0)), **variant}


def elsewhere(programs: Sequence[Program], table: Floats, machine: Machine, levels: Sequence[str]) -> Floats:
    """`out_of_sample`; NaN as in `table`, cycles of every program at every level."""
    fewest = dict(zip(levels, np.nanmin(table, axis=0).astype(int).tolist(), strict=True))
    times = out_of_sample([[program] for program in programs], machine, fewest)
    times[:, np.isnan(table)] = np.nan
    return times


def guarded(pair: Pair) -> Iterator[Row]:
    """Row per budget and level: losses of the shipped programs with and without the guard, and the champion's largest loss."""
    compiler, machine, levels = Compiler(pair.target_graph), pair.target_graph.machine, pair.levels
    for budget, result in pair.results.items():
        plans = [result.plan(level) for level in levels] + ([] if result.robust is None else [result.robust])
        programs = [compile_plan(compiler, plan) for plan in plans]
        table = np.full((len(programs), len(levels)), np.nan)
        for row, program in zip(table, programs, strict=True):
            fits = [program.needs.fits(machine.granted(level)) for level in levels]
            row[fits] = np.array([timing.cycles for timing in simulate_levels(program, machine, levels).values()])[fits]
        times = elsewhere(programs, table, machine, levels)
        champions = tuple(range(len(levels)))
        guard = settle_variants(champions, times, len(levels))
        loss = np.array([losses(level_times) - 1 for level_times in times])
        for index, level in enumerate(levels):
            row = {
                "candidates": int(budget),
                "level": level,
                "displaced": int(index in {level_times.level for level_times in guard.displaced}),
            }
            for name, serves in (("without", champions), ("with", guard.serves)):
                served_loss = loss[:, serves[index], index]
                row |= {
                    f"nominal_{name}": served_loss[0],
                    f"out_mean_{name}": served_loss[1:].mean(),
                    f"out_worst_{name}": served_loss[1:].max(),
                }
            yield row | {"condition": CONDITIONS[1 + int(loss[1:, index, index].argmax())]}


def show_guard(rows: Sequence[Row]) -> Iterator[Table | str]:
    lines = []
    for (budget,), group in groups(rows, "candidates").items():
        for name, displaced in (("without", 0), ("with", sum(row["displaced"] for row in group))):
            nominal, mean, worst_loss = (np.array([row[f"{key}_{name}"] for row in group]) for key in ("nominal", "out_mean", "out_worst"))
            figures = (f"{value:.2%}" for value in (nominal.mean(), nominal.max(), mean.mean(), worst_loss.max()))
            lines.append((budget, len(groups(group, *PAIR)), name, f"{displaced} of {len(group)}", *figures))
    yield Table(("programs", "cases", "<guard", "displaced", "nominal mean", "worst", "out of sample mean", "worst"), lines)
    for row in rows:
        if row["displaced"]:
            yield (
                f"{row['candidates']} programs, {row['network']} on {row['machine']} at {row['level']}: costs {row['nominal_with']:.2%}, "
                f"and loses {row['out_worst_with']:.2%} at most in place of {row['out_worst_without']:.2%} ({row['condition']})"
            )


def cells(rows: Sequence[Row]) -> Iterator[Row]:
    """A row per network, machine and seed: the largest loss over the levels that a program fits, and how often one does not fit."""
    single_level = [f"only_{level}" for level in LEVELS]
    for (network, machine, seed), group in groups(rows, *PAIR).items():
        worst_loss = {name: max(row[name] for row in group if row[name] is not None) for name in (*single_level, "robust", "two", "own")}
        yield {
            "network": network, "machine": machine, "seed": seed, **worst_loss, "only": max(worst_loss[name] for name in single_level),
            "pay": max(row["robust"] / row["own"] for row in group),
            "unfit": sum(row[name] is None for row in group for name in single_level), "changed": sum(row["changed"] for row in group),
            **{key: max(row[key] for row in group) for key in STREAMS},
        }  # fmt: skip


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    rows_by_machine = groups(cells(rows), "machine")
    for number, ((machine,), machine_rows) in enumerate(rows_by_machine.items()):
        yield f"{chr(10) * bool(number)}{machine}: the largest loss over the levels, median of {len(groups(machine_rows, 'seed'))} seeds"
        table = [medians(network_rows, "network")[0] | _counts(network_rows) for network_rows in groups(machine_rows, "network").values()]
        mean = {name: geometric([row[name] for row in table]) for name in SHOWN}
        yield Table.from_rows(
            [*table, {"network": f"{MEAN}, sum", **mean, **_counts(machine_rows)}], "<network", "none only=only_none:.3f",
            "one level only=only:.3f", "robust:.3f", "two:.3f", "own:.3f", "variants pay=pay:.3f", "does not fit=unfit", "changed",
            "stream own=own_stream", "robust=robust_stream",
        )  # fmt: skip
        largest = {name: max(machine_rows, key=lambda row: float(row[name])) for name in SHOWN[1:]}
        yield "at most: " + ", ".join(
            f"{title} {largest[name][name]:.3f} ({largest[name]['network']})"
            for name, title in (("only", "one level only"), ("robust", "robust"), ("two", "two"), ("own", "own"), ("pay", "variants pay"))
        )


def _counts(cases: Sequence[Row]) -> Row:
    """Sums over seeds, of how many."""
    total, (unfit, changed_count) = len(cases) * len(LEVELS), (sum(row[key] for row in cases) for key in ("unfit", "changed"))
    return {"unfit": f"{unfit} of {total * (len(LEVELS) - 1)}", "changed": f"{changed_count} of {total}"}


def with_guard(
    study: Study,
    guard: Annotated[str | None, typer.Option(metavar="N,...", help="Only what the guard costs and insures, at these budgets.")] = None,
) -> Study:
    if guard is None:
        return study
    if not all(budget.isdecimal() and int(budget) for budget in guard.split(",")):
        raise typer.BadParameter(f"{guard}: expected numbers of programs, as in 8,48", param_hint="--guard")
    arms = {budget: Arm((f"budget.candidates={budget}",)) for budget in guard.split(",")}
    return replace(study, name="guard", arms=arms, rows=guarded, show=show_guard)


STUDY = Study(
    "levels", {"all": Arm(levels=LEVELS), **{level: Arm(levels=(level,)) for level in LEVELS}}, rows, show,
    f"{SHIPPED},made:mobilenet_v2,made:efficientnet_b0,made:vit_b16", ("edge", FAST, GRANTED), candidates=32, options=with_guard,
)  # fmt: skip
