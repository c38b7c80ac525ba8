"""Where a board measures, it also has the last word: champions are its finals' winners, and the summary's cycles are what it said there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.derive.plan import Plan
from compiler.tile.spec import Unit
from tuner.build import Opened
from tuner.config import TuneConfig
from tuner.farm.backend import Backend, SerialBackend
from tuner.log.read import read_log, read_tasks
from tuner.pieces import Searched
from tuner.runners.finals import Final, FinalsSpec
from tuner.runners.find import BUILT_IN, RunnerSpec
from tuner.runners.verdict import Finalist, Verdict, decide, finalists
from tuner.summary import FinalistSummary, LevelSummary, PieceSummary, RunnerSummary


def runner_spec(config: TuneConfig) -> RunnerSpec | None:
    """None where the simulator measures."""
    runner = config.runner
    return None if runner.name == BUILT_IN else RunnerSpec(runner.name, runner.repeats, runner.timeout_s)


def runner_name(config: TuneConfig) -> str:
    """What the log's column `runner` says."""
    runner = config.runner
    return runner.name if runner.name == BUILT_IN or runner.repeats == 1 else f"{runner.name} (median of {runner.repeats})"


def verdicts(
    opened: Opened, found: Sequence[Searched], folder: Path, baselines: Sequence[Plan], config: TuneConfig, address: str | None
) -> tuple[Verdict, ...]:
    """Of every search.  folder: of the run, whose log is closed.  baselines: of every search, for its first piece."""
    spec = runner_spec(config)
    assert spec is not None
    levels, log, tasks = tuple(opened.machine.contention), read_log(folder), read_tasks(folder)
    out = []
    with _farm(FinalsSpec(spec), config, address) as farm:
        for search, baseline in zip(found, baselines, strict=True):
            plans = finalists(log, tasks, search.run, levels, config.runner.finalists)
            out.append(decide(opened.packed[search.pieces[0]], plans, baseline, levels, config.runner.rounds, farm))
    return tuple(out)


def _farm(spec: FinalsSpec, config: TuneConfig, address: str | None) -> Backend[Final, NDArray[np.int64]]:
    """One worker: finalists are compared on one board."""
    if config.farm.backend == "serial":
        return SerialBackend(spec)
    from tuner.farm.actors import RayBackend  # Ray takes seconds to import

    farm = config.farm
    return RayBackend(spec, 1, address, farm.wait_s, "finals", item_timeout_s=None, in_flight=1, max_batch=1, resource=farm.resource)


def plan_for(plan: Plan, of: Unit, unit: Unit) -> Plan:
    """The plan of a piece for another one that computes the same: the same segments, its own names.  of: the piece that it is for."""
    names = {a.name: b.name for a, b in zip(of.kernels, unit.kernels, strict=True)}
    segments = tuple(
        segment.model_copy(update={"operators": tuple(names[name] for name in segment.operators)}) for segment in plan.segments
    )
    return plan.model_copy(update={"model": unit.graph.digest, "segments": segments})


def as_measured(
    simulated: Mapping[str, LevelSummary], found: Sequence[Searched], said: Sequence[Verdict], clock_hz: int
) -> dict[str, LevelSummary]:
    """Levels with the board's cycles in place of the simulator's: sums over pieces."""
    out = {}
    for level, row in simulated.items():
        variants = {
            other: sum(
                len(search.pieces) * verdict.cycles(verdict.plans[other], level) for search, verdict in zip(found, said, strict=True)
            )
            for other in simulated
        }
        baseline = sum(
            len(search.pieces) * verdict.cycles(verdict.baseline.plan, level) for search, verdict in zip(found, said, strict=True)
        )
        cycles = variants[level]
        out[level] = row.model_copy(
            update={
                "cycles": cycles,
                "latency_us": round(cycles / clock_hz * 1e6, 3),
                "baseline_layerwise_cycles": baseline,
                "speedup": round(baseline / cycles, 4),
                "variant_cycles": variants,
            }
        )
    return out


def pieces_as_measured(simulated: Sequence[PieceSummary], found: Sequence[Searched], said: Sequence[Verdict]) -> tuple[PieceSummary, ...]:
    """Pieces with the board's cycles."""
    by_run = {search.run: verdict for search, verdict in zip(found, said, strict=True)}
    return tuple(
        piece.model_copy(
            update={"cycles": {level: by_run[piece.search].cycles(by_run[piece.search].plans[level], level) for level in piece.cycles}}
        )
        for piece in simulated
    )


def runner_summary(config: TuneConfig, found: Sequence[Searched], said: Sequence[Verdict]) -> RunnerSummary:
    """What measured, how often, and what it said in the finals."""
    rows = [_row(search, each) for search, verdict in zip(found, said, strict=True) for each in (*verdict.finalists, verdict.baseline)]
    return RunnerSummary(name=config.runner.name, repeats=config.runner.repeats, rounds=config.runner.rounds, finalists=tuple(rows))


def _row(search: Searched, finalist: Finalist) -> FinalistSummary:
    return FinalistSummary(
        search=search.run,
        plan=finalist.plan.digest,
        segments=len(finalist.plan.segments),
        instructions=finalist.instructions,
        cycles=dict(finalist.cycles),
        spread=dict(finalist.spread),
        simulated_cycles=dict(finalist.simulated),
    )
