"""Run files timed again by this simulator: programs compiled from the plans, and the content of `best.onnx`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compiler.build import MeasuredModel, default_by_level, measure
from compiler.model import LoweredModel
from compiler.plan.plan import Plan
from simulator.compiled import Compiled, read_compiled
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine import BASELINE
from simulator.subgraph_sequence import simulate_all
from tuner.config import BUILT_IN
from tuner.log.read import read_log
from tuner.measure.grants import same_grants
from tuner.measure.reopen import read_plans
from tuner.platform.local_files import LocalPath
from tuner.runs.anytime_curve import COLUMNS, best_after
from tuner.runs.folder import OWN
from tuner.runs.list_runs import RunEntry
from tuner.runs.subgraph_runs import subgraph_copies


class FileTimes(NamedTuple):
    """Plans of the run and today's cycles.  own_plans, baselines: level -> plan.  champions, untuned: level -> cycles, or None.

    faults: a line each.
    """

    own_plans: Mapping[str, Plan]
    baselines: Mapping[str, Plan]
    champions: Mapping[str, int | None]
    untuned: Mapping[str, int]
    faults: tuple[str, ...]


def run_clock(summary: Mapping[str, Any]) -> str:
    """Name of the summary's clock: `simulator`, or the runner's name."""
    return BUILT_IN if summary["runner"] is None else str(summary["runner"]["name"])


def own_cycles(summary: Mapping[str, Any], level: str) -> int:
    """Cycles of the level's champion, shipped or not."""
    robust = summary["robust"]
    return int(summary["levels"][level]["cycles"] if robust is None else robust["own_cycles"][level])


def time_files(run: Path, entry: RunEntry, lowered: LoweredModel, same_simulator: bool) -> FileTimes:
    """Time all plans of a run again and compare with its summary.  Raises `BadInputError` for a missing or invalid plan."""
    summary, machine = entry.summary, lowered.machine
    assert summary is not None
    levels = tuple(machine.contention)
    ships, champions = read_plans(run / "plans", machine), read_plans(run / "plans" / OWN, machine)
    baselines = _baselines(run, lowered)
    robust, rows = summary["robust"], summary["levels"]
    faults = list[str]()
    for folder, plans in (("plans", ships), (f"plans/{OWN}", champions)):
        for level in levels:
            expected = rows[level]["plan"] if folder == "plans" else rows[level]["plan"] if robust is None else robust["own_plan"][level]
            if plans[level].digest != expected:
                faults.append(f"{run / folder / f'{level}.json'}: plan {plans[level].digest[:8]}, summary.json says {expected[:8]}")
    shipped = _timed(lowered, ships)
    unshipped = _timed(lowered, {level: plan for level, plan in champions.items() if plan.digest != ships[level].digest})
    timed = {"plans": shipped, f"plans/{OWN}": {**shipped, **unshipped}, "baseline": _timed(lowered, baselines)}
    faults += [f"{run}: {name}, level {level}: {m}" for name, models in timed.items() for level, m in models.items() if isinstance(m, str)]
    simulated = {
        name: {level: None if isinstance(m, str) else m.timings[level].cycles for level, m in models.items()}
        for name, models in timed.items()
    }
    # cycles are exact only by the simulator that reported them; a runner's vary from reading to reading
    timed_by_simulator = same_simulator and run_clock(summary) == BUILT_IN
    if timed_by_simulator:
        expected_cycles = {
            "plans": {level: rows[level]["cycles"] for level in levels},
            f"plans/{OWN}": {level: own_cycles(summary, level) for level in levels},
            "baseline": {level: rows[level]["baseline_layerwise_cycles"] for level in levels},
        }
        for name, expected in expected_cycles.items():
            for level in levels:
                if (cycles := simulated[name][level]) is not None and cycles != expected[level]:
                    faults.append(f"{run}: {name}, level {level}: takes {cycles:,} cycles, summary.json says {expected[level]:,}")
        if summary["target"] is None:
            faults += _fastest_of_log(run, levels, {level: own_cycles(summary, level) for level in levels})
    faults += _file(run, lowered, timed["plans"], rows, same_simulator)
    baseline = measure(lowered, default_by_level(lowered))
    untuned = {}
    for level in levels:
        base, default = simulated["baseline"][level], baseline[level].timings[level].cycles
        untuned[level] = default if base is None else min(base, default)
        for name in ("plans", f"plans/{OWN}") if run_clock(summary) == BUILT_IN else ():
            if (cycles := simulated[name][level]) is not None and cycles > untuned[level]:
                faults.append(f"{run}: {name}, level {level}: takes {cycles:,} cycles, the untuned plan {untuned[level]:,}")
    return FileTimes(champions, baselines, simulated[f"plans/{OWN}"], untuned, tuple(dict.fromkeys(faults)))


def _baselines(run: Path, lowered: LoweredModel) -> dict[str, Plan]:
    """Baseline plan of every level: one for each group of levels with the same grants."""
    levels = tuple(lowered.machine.contention)
    plans = dict[str, Plan]()
    for group in same_grants(lowered.machine, levels):
        first = levels[group[0]]
        plan = Plan.load(run / "plans" / f"{BASELINE if first == levels[0] else f'{BASELINE}.{first}'}.json")
        plans |= {levels[index]: plan for index in group}
    return {level: plans[level] for level in levels}


def _timed(lowered: LoweredModel, plans: Mapping[str, Plan]) -> dict[str, MeasuredModel | str]:
    """Measurement of each plan at its level; the error's text where it has no program."""
    outcomes: dict[str, MeasuredModel | str] = {}
    for level, plan in plans.items():
        try:
            outcomes[level] = measure(lowered, {level: plan})[level]
        except (BadInputError, InfeasibleError) as error:
            outcomes[level] = str(error)
    return outcomes


def _fastest_of_log(run: Path, levels: tuple[str, ...], expected: Mapping[str, int]) -> Iterator[str]:
    """Faults of champions that are not the fastest program of the log."""
    log, place = read_log(run, COLUMNS), LocalPath(run)
    best = best_after(log, subgraph_copies(place), levels, [int(log["readings"].sum())])
    for level, cycles in zip(levels, best[:, 0], strict=True):
        if not np.isnan(cycles) and int(cycles) != expected[level]:
            yield f"{run}: level {level}: the log's fastest program takes {int(cycles):,} cycles, summary.json says {expected[level]:,}"


def _file(
    run: Path, lowered: LoweredModel, compiled: Mapping[str, MeasuredModel | str], rows: Mapping[str, Any], same_simulator: bool
) -> Iterator[str]:
    """Faults of `best.onnx`.  compiled: programs of the shipped plans, compiled today."""
    path = run / "best.onnx"
    try:
        file = read_compiled(path)
    except BadInputError as error:
        yield str(error)
        return
    if (file.model_digest, file.machine.digest) != (lowered.digest, lowered.machine.digest):
        yield f"{path}: of another model or machine than the run"
        return
    if set(file.levels) != set(compiled):
        yield f"{path}: has levels {', '.join(file.levels)}; the run has {', '.join(compiled)}"
        return
    for level, outcome in compiled.items():
        expected = rows[level]["plan"]
        if file.plan(level) != expected:
            yield f"{path}: level {level} runs plan {file.plan(level)[:8]}, summary.json says {expected[:8]}"
        elif same_simulator and not isinstance(outcome, str):
            yield from _stream(path, file, level, outcome)


def _stream(path: Path, file: Compiled, level: str, model: MeasuredModel) -> Iterator[str]:
    """Faults of one variant, by the simulator that the file was compiled for."""
    cycles = simulate_all(file.prepared(level), file.machine, file.level(level)).cycles
    try:
        file.check_cycles(level, cycles)
    except BadInputError as error:
        yield f"{path}: {error}"
    if model.plan.digest == file.plan(level) and model.digest != " ".join(program.digest for program in file.programs(level)):
        yield f"{path}: level {level}: not the program that its plan compiles to"
