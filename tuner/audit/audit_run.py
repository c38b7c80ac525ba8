"""Checks of `tilefarm audit` on a finished run, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import simulator
from compiler.build import measure_plans
from compiler.model import LoweredModel
from compiler.plan.plan import Plan
from simulator.npu.errors import BadInputError, InfeasibleError
from tuner.audit.report_types import Audit, LevelAudit, RaceFigures, Rivals, TimingPair
from tuner.audit.rerace import repeat_races
from tuner.audit.rerun import Rerun, search_longer, search_other_seeds
from tuner.audit.retime import own_cycles, run_clock, time_files
from tuner.config import BUILT_IN, TuneConfig, load_config
from tuner.farm.plugin_identity import external_plugins
from tuner.farm.subgraph_searches import SearchedSubgraph, searches
from tuner.log.read import read_log, read_tasks
from tuner.measure.reopen import open_tuned
from tuner.runs.folder import SETTINGS
from tuner.runs.list_runs import ENDED, open_run
from tuner.selection.finals import finalists
from tuner.tune_request import Backend

SHARE = 10  # an audit uses one SHARE-th of the run's readings


@dataclass(frozen=True)
class AuditRequest:
    """Request for an audit.  seeds: most searches with another seed.  races: most repeated finals, if a runner measured the run.

    longer: resume a copy of the run up to twice its readings.  backend, address, workers: see `TuneRequest`; None: as in the run's
    settings.
    """

    run: Path
    seeds: int = 3
    races: int = 10
    longer: bool = False
    backend: Backend | None = None
    address: str | None = None
    workers: int | Mapping[str, int] | None = None
    quiet: bool = True


def audit(request: AuditRequest, say: Callable[[str], None]) -> Audit:
    """Audit a finished run.  say: prints a progress line.  Raises `BadInputError` for an unfinished run, or a missing model or settings."""
    run = request.run
    entry = open_run(run)
    summary = entry.summary
    if summary is None or entry.state not in ENDED:
        raise BadInputError(f"{run}: the run is {entry.state}; expected one that has ended (`tilefarm status {run}`)")
    settings = run / SETTINGS
    if not settings.is_file():
        raise BadInputError(f"{settings}: not there; expected the settings of the run")
    config = load_config(str(settings)).given({"farm.backend": request.backend, "farm.workers": request.workers})
    external_plugins(config, config.farm.backend == "serial", request.address)
    lowered, saved = open_tuned(run)
    run_version, own_version = str(entry.identity.get("simulator")), simulator.VERSION
    same_simulator, clock, levels = run_version == own_version, run_clock(summary), tuple(lowered.machine.contention)
    say(f"{lowered.name} on {lowered.machine.name}: champions and the untuned plan compiled and timed again")
    files = time_files(run, entry, lowered, same_simulator)
    faults, notes = list(files.faults), list[str]()
    subgraphs = searches(lowered, str(entry.identity["run"]))
    used = sum(summary["measurements"][name] for name in ("search", "canary", "finals"))
    # with other seeds, races get half of the readings, and the seeds the remainder
    budget, spent = used // SHARE, 0
    raced: Mapping[str, RaceFigures] = {}
    if clock != BUILT_IN:
        share = budget if not request.seeds else budget // 2
        race = repeat_races(
            run, lowered, subgraphs, summary, config, files.own_plans, files.baselines, share, request.races, request.address, say
        )  # fmt: skip
        raced, spent = race.levels, race.readings
        faults += race.faults
    rivals = {} if same_simulator or clock != BUILT_IN else _rivals(run, lowered, subgraphs, files.own_plans, config)
    rerun = Rerun(run, saved, entry.identity, config, request.backend, request.address, request.workers, request.quiet)
    longer_search = None
    seeds = search_other_seeds(rerun, lowered, budget - spent, request.seeds, subgraphs if same_simulator else (), say)
    if seeds is not None:
        spent += seeds.taken
        if entry.identity.get("warm_start") or entry.identity.get("start"):
            notes.append("other seeds begin without the earlier runs and the plans that this one began with")
    elif request.seeds:
        notes.append(f"no search with another seed: {budget - spent:,} readings are left for it, too few for an epoch")
    if request.longer and not same_simulator:
        notes.append(f"not resumed: simulator {run_version} measured the run, this is {own_version}")
    elif request.longer:
        longer_search = search_longer(rerun, 2 * used, say)
        spent += used
    found_levels = {}
    for level in levels:
        champion = raced[level].champion if raced else TimingPair(own_cycles(summary, level), files.champions[level])
        recorded = int(summary["levels"][level]["baseline_layerwise_cycles"])
        untuned = raced[level].untuned if raced else TimingPair(recorded, files.untuned[level])
        found_levels[level] = LevelAudit(champion, untuned, raced.get(level), rivals.get(level))
    title, runner = f"{lowered.name} on {lowered.machine.name}", None if clock == BUILT_IN else clock
    return Audit(title, (run_version, own_version), runner, found_levels, tuple(faults), tuple(notes), seeds, longer_search, spent, used)


def _rivals(
    run: Path, lowered: LoweredModel, searches: Sequence[SearchedSubgraph], champions: Mapping[str, Plan], config: TuneConfig
) -> dict[str, Rivals]:
    """Best rival of the champion for every level: the log's next best programs, timed by this simulator."""
    log = read_log(run, ("run", "kind", "status", "level", "cycles", "task"))
    tasks = read_tasks(run, ("task", "payload"))
    rivals: dict[str, Rivals] = {}
    for search in searches:
        piece = search.pieces[0]
        compiler = lowered.compilers[piece]
        for level, plan in champions.items():
            champion = plan.piece(piece)
            runners_up = [
                rival for rival in finalists(log, tasks, search.run, [level], config.runner.finalists) if rival.digest != champion.digest
            ]
            cycles = {}
            for rival in (champion, *runners_up):
                try:
                    cycles[rival.digest] = measure_plans(compiler, {level: rival})[level].timings[level].cycles
                except InfeasibleError:
                    continue  # another simulator may leave less room
            champion_cycles = cycles.pop(champion.digest, None)
            if champion_cycles is None or not cycles:
                continue
            best = min(cycles, key=lambda digest: (cycles[digest], digest))
            lag = cycles[best] / champion_cycles - 1
            if level not in rivals or lag < rivals[level].behind:
                rivals[level] = Rivals(best, lag)
    return rivals
