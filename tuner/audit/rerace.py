"""Rate of flipped winners: each level's champion races again against the log's next best programs, on the runner that measured them.

Rounds are those of the finals (`tuner.selection.race`): every program once, forwards and backwards in turn, so drift affects all alike.
Rounds are divided into races, each won by the smallest median.  Faults are decided over all rounds, by the test of the finals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.model import LoweredModel
from compiler.plan.plan import Plan
from tuner.audit.report_types import RaceFigures, TimingPair
from tuner.config import TuneConfig
from tuner.farm.board_finals import FinalsSpec, farm_of_finals, read
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.log.drift import DRIFTED
from tuner.log.read import read_log, read_tasks
from tuner.measure.runners import runner_spec
from tuner.selection.finals import Contender, contenders, finalists
from tuner.selection.race import FAILED, TOLERANCE, WRONG, Turn, score


class RaceOutcome(NamedTuple):
    """Outcome of all races.  readings: readings used."""

    levels: Mapping[str, RaceFigures]
    faults: tuple[str, ...]
    readings: int


@dataclass(frozen=True)
class _Entry:
    """Entries of the race of one search.

    programs: number -> program.  programs_by_level: level -> numbers, champion first, baseline last.
    """

    search: SearchedSubgraph
    programs: Sequence[Contender]
    programs_by_level: Mapping[str, tuple[int, ...]]

    @property
    def a_round(self) -> int:
        return sum(map(len, self.programs_by_level.values()))


def repeat_races(
    run: Any, lowered: LoweredModel, searches: Sequence[SearchedSubgraph], summary: Mapping[str, Any], config: TuneConfig,
    champions: Mapping[str, Plan], baselines: Mapping[str, Plan], limit: int, races: int, address: str | None, say: Callable[[str], None],
) -> RaceOutcome:  # fmt: skip
    """Race all levels.  run: folder of the run.  limit: most readings, at least two rounds.  races: most races.  Raises `TilefarmError`."""
    log = read_log(run, ("run", "kind", "status", "level", "cycles", "task"))
    tasks = read_tasks(run, ("task", "payload"))
    entered = [_enter(lowered, search, log, tasks, champions, baselines, config.runner.finalists) for search in searches]
    rounds = max(2, limit // sum(entry.a_round for entry in entered))
    count = min(races, rounds)
    length = rounds // count
    say(f"{count} races of {length} readings: champions, runners-up and the untuned plan at {len(champions)} levels")
    cycles = [_cycles(entry, count * length, config, address) for entry in entered]
    faults = [line for entry, readings in zip(entered, cycles, strict=True) for line in _faults(run, entry, readings, summary)]
    levels = {level: _level(level, entered, cycles, count, summary) for level in champions}
    return RaceOutcome(levels, tuple(faults), sum(entry.a_round for entry in entered) * count * length)


def _enter(
    lowered: LoweredModel, search: SearchedSubgraph, log: Any, tasks: Any, champions: Mapping[str, Plan],
    baselines: Mapping[str, Plan], count: int,
) -> _Entry:  # fmt: skip
    piece = search.pieces[0]
    plans: dict[str, Plan] = {}
    ranked: dict[str, list[str]] = {}
    for level in champions:
        first, last = champions[level].piece(piece), baselines[level].piece(piece)
        plan_list = [first, *finalists(log, tasks, search.run, [level], count), last]
        plans |= {plan.digest: plan for plan in plan_list}
        runners_up = dict.fromkeys(plan.digest for plan in plan_list if plan.digest not in (first.digest, last.digest))
        ranked[level] = [first.digest, *runners_up, last.digest]
    programs = contenders(lowered.packed[piece], list(plans.values()), tuple(champions))
    number = {contender.plan.digest: index for index, contender in enumerate(programs)}
    return _Entry(
        search,
        programs,
        {level: tuple(number[key] for key in digests if level in programs[number[key]].simulated) for level, digests in ranked.items()},
    )


def _cycles(entered: _Entry, rounds: int, config: TuneConfig, address: str | None) -> dict[str, NDArray[np.int64]]:
    """Cycles of every reading: level -> int64 [rounds, programs of the level], FAILED where there was no reading."""
    spec = runner_spec(config)
    assert spec is not None
    turns = [
        Turn(level, programs if index % 2 == 0 else programs[::-1])
        for index in range(rounds)
        for level, programs in entered.programs_by_level.items()
    ]
    by_level: dict[str, list[list[int]]] = defaultdict(list)
    with farm_of_finals(FinalsSpec(spec, tuple(contender.program for contender in entered.programs)), config, address) as farm:
        for turn, row in zip(turns, read(farm, turns), strict=True):
            by_level[turn.level].append(row if turn.programs == entered.programs_by_level[turn.level] else row[::-1])
    return {level: np.array(rows, np.int64) for level, rows in by_level.items()}


def _median(cycles: NDArray[np.int64]) -> float:
    """Median of the successful readings; infinity without any."""
    readings = cycles[cycles > FAILED]
    return float(np.median(readings)) if len(readings) else float("inf")


def _level(
    level: str, entered: Sequence[_Entry], cycles: Sequence[Mapping[str, NDArray[np.int64]]], count: int, summary: Mapping[str, Any]
) -> RaceFigures:
    """Races of the entire model: cycles are sums over subgraphs, and the champion loses a race if it loses in any subgraph."""
    flipped = np.zeros(count, bool)
    raced = np.zeros(2)
    for entry, readings in zip(entered, cycles, strict=True):
        rows = readings[level]
        raced += len(entry.search.pieces) * np.array([_median(rows[:, 0]), _median(rows[:, -1])])
        for index, race in enumerate(np.split(rows[:, : max(1, rows.shape[1] - 1)], count)):
            medians = [_median(race[:, program]) for program in range(race.shape[1])]
            flipped[index] |= medians[0] > min(medians)
    robust, row = summary["robust"], summary["levels"][level]
    recorded = int(row["cycles"] if robust is None else robust["own_cycles"][level])
    champion, untuned = (None if np.isinf(total) else round(float(total)) for total in raced)
    return RaceFigures(
        TimingPair(recorded, champion),
        TimingPair(int(row["baseline_layerwise_cycles"]), untuned),
        count,
        int(flipped.sum()),
        len(cycles[0][level]),
    )


def _faults(run: Any, entered: _Entry, cycles: Mapping[str, NDArray[np.int64]], summary: Mapping[str, Any]) -> Iterator[str]:
    """Faults beyond noise: a champion slower than reported (relative to the untuned plan, which drifts alike), slower than the untuned
    plan, or slower than a runner-up."""
    reported = {row["plan"]: row["cycles"] for row in summary["runner"]["finalists"] if row["search"] == entered.search.run}
    tests = sum(len(programs) for programs in entered.programs_by_level.values())
    threshold = NormalDist().inv_cdf(1 - WRONG / tests)
    for level, programs in entered.programs_by_level.items():
        rows = cycles[level]
        location = f"{run}: level {level}"
        if _median(rows[:, 0]) == float("inf"):
            yield f"{location}: the champion has no reading any more"
            continue
        plans = [entered.programs[index].plan.digest for index in programs]
        gap = _log_ratios(rows, 0, -1)
        champion, baseline = (reported.get(plan, {}).get(level) for plan in (plans[0], plans[-1]))
        if len(programs) > 1 and score(gap) > threshold:
            yield f"{location}: the champion takes {float(np.exp(np.median(gap))) - 1:.1%} longer than the untuned plan"
        elif len(programs) > 1 and champion and baseline and score(gap - np.log(champion / baseline) - np.log1p(DRIFTED)) > threshold:
            slowdown = float(np.exp(np.median(gap))) / (champion / baseline) - 1
            yield f"{location}: the champion is {slowdown:.1%} slower than summary.json says, beside the untuned plan"
        for index in range(1, len(programs) - 1):
            lag = _log_ratios(rows, 0, index)
            if score(lag - TOLERANCE) > threshold:
                yield f"{location}: plan {plans[index][:8]} of the log is {-np.expm1(-np.median(lag)):.1%} faster than the champion"


def _log_ratios(rows: NDArray[np.int64], first: int, second: int) -> NDArray[np.float64]:
    """Differences log first - log second, of the rounds without a failure of either."""
    valid = rows[(rows[:, first] > FAILED) & (rows[:, second] > FAILED)]
    return np.log(valid[:, first]) - np.log(valid[:, second])
