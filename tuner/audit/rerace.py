"""How often winners flip: each level's champion raced again against the next best programs of the log, by the runner that measured them.

Rounds are those of the finals (`tuner.selection.race`): everybody once, forwards and backwards in turn, so that a drift is in all alike.
They are dealt into races, each won by the smallest median.  What is told of all rounds together is told by the finals' test.
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
from tuner.audit.report_types import Raced, Timed
from tuner.config import TuneConfig
from tuner.farm.board_finals import FinalsSpec, farm_of_finals, read
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.log.drift import DRIFTED
from tuner.log.read import read_log, read_tasks
from tuner.measure.runners import runner_spec
from tuner.selection.finals import Contender, contenders, finalists
from tuner.selection.race import FAILED, TOLERANCE, WRONG, Turn, score


class RacesFound(NamedTuple):
    """readings: that were taken."""

    levels: Mapping[str, Raced]
    faults: tuple[str, ...]
    readings: int


@dataclass(frozen=True)
class _Entered:
    """Of one search.  programs: all of its programs, by number.  of: level -> numbers, the champion's first, the baseline's last."""

    search: SearchedSubgraph
    programs: Sequence[Contender]
    of: Mapping[str, tuple[int, ...]]

    @property
    def a_round(self) -> int:
        return sum(map(len, self.of.values()))


def race_again(
    run: Any, opened: LoweredModel, found: Sequence[SearchedSubgraph], summary: Mapping[str, Any], config: TuneConfig, own: Mapping[str,
    Plan],
    baselines: Mapping[str, Plan], most: int, races: int, address: str | None, say: Callable[[str], None],
) -> RacesFound:  # fmt: skip
    """run: its folder.  most: readings, of which at least two rounds are taken.  races: at most.  Raises `TilefarmError`."""
    log = read_log(run, ("run", "kind", "status", "level", "cycles", "task"))
    tasks = read_tasks(run, ("task", "payload"))
    entered = [_entered(opened, search, log, tasks, own, baselines, config.runner.finalists) for search in found]
    rounds = max(2, most // sum(each.a_round for each in entered))
    count = min(races, rounds)
    length = rounds // count
    say(f"{count} races of {length} readings: champions, runners-up and the untuned plan at {len(own)} levels")
    cycles = [_cycles(each, count * length, config, address) for each in entered]
    faults = [line for each, its in zip(entered, cycles, strict=True) for line in _faults(run, each, its, summary)]
    levels = {level: _level(level, entered, cycles, count, summary) for level in own}
    return RacesFound(levels, tuple(faults), sum(each.a_round for each in entered) * count * length)


def _entered(
    opened: LoweredModel, search: SearchedSubgraph, log: Any, tasks: Any, own: Mapping[str, Plan], baselines: Mapping[str, Plan], count: int
) -> _Entered:
    piece = search.pieces[0]
    plans: dict[str, Plan] = {}
    ranked: dict[str, list[str]] = {}
    for level in own:
        first, last = own[level].piece(piece), baselines[level].piece(piece)
        some = [first, *finalists(log, tasks, search.run, [level], count), last]
        plans |= {plan.digest: plan for plan in some}
        others = dict.fromkeys(plan.digest for plan in some if plan.digest not in (first.digest, last.digest))
        ranked[level] = [first.digest, *others, last.digest]
    programs = contenders(opened.packed[piece], list(plans.values()), tuple(own))
    number = {each.plan.digest: at for at, each in enumerate(programs)}
    return _Entered(
        search,
        programs,
        {level: tuple(number[each] for each in digests if level in programs[number[each]].simulated) for level, digests in ranked.items()},
    )


def _cycles(entered: _Entered, rounds: int, config: TuneConfig, address: str | None) -> dict[str, NDArray[np.int64]]:
    """Level -> int64 [rounds, programs of the level], FAILED where there was no reading."""
    spec = runner_spec(config)
    assert spec is not None
    turns = [Turn(level, of if at % 2 == 0 else of[::-1]) for at in range(rounds) for level, of in entered.of.items()]
    found: dict[str, list[list[int]]] = defaultdict(list)
    with farm_of_finals(FinalsSpec(spec, tuple(each.program for each in entered.programs)), config, address) as farm:
        for turn, told in zip(turns, read(farm, turns), strict=True):
            found[turn.level].append(told if turn.programs == entered.of[turn.level] else told[::-1])
    return {level: np.array(rows, np.int64) for level, rows in found.items()}


def _median(cycles: NDArray[np.int64]) -> float:
    """Of the readings that did not fail; infinity where all did."""
    good = cycles[cycles > FAILED]
    return float(np.median(good)) if len(good) else float("inf")


def _level(
    level: str, entered: Sequence[_Entered], cycles: Sequence[Mapping[str, NDArray[np.int64]]], count: int, summary: Mapping[str, Any]
) -> Raced:
    """Of the whole model: cycles are sums over pieces, and a race of it is lost where one of its pieces loses."""
    flipped = np.zeros(count, bool)
    now = np.zeros(2)
    for each, its in zip(entered, cycles, strict=True):
        rows = its[level]
        now += len(each.search.pieces) * np.array([_median(rows[:, 0]), _median(rows[:, -1])])
        for at, race in enumerate(np.split(rows[:, : max(1, rows.shape[1] - 1)], count)):
            medians = [_median(race[:, program]) for program in range(race.shape[1])]
            flipped[at] |= medians[0] > min(medians)
    robust, row = summary["robust"], summary["levels"][level]
    then = int(row["cycles"] if robust is None else robust["own_cycles"][level])
    champion, untuned = (None if np.isinf(each) else round(float(each)) for each in now)
    return Raced(
        Timed(then, champion), Timed(int(row["baseline_layerwise_cycles"]), untuned), count, int(flipped.sum()), len(cycles[0][level])
    )


def _faults(run: Any, entered: _Entered, cycles: Mapping[str, NDArray[np.int64]], summary: Mapping[str, Any]) -> Iterator[str]:
    """What is told apart from noise: a champion that is slower than said, beside the untuned plan, which drifts as it does; slower than
    that plan; or slower than a runner-up."""
    said = {each["plan"]: each["cycles"] for each in summary["runner"]["finalists"] if each["search"] == entered.search.run}
    tests = sum(len(of) for of in entered.of.values())
    sure = NormalDist().inv_cdf(1 - WRONG / tests)
    for level, of in entered.of.items():
        rows = cycles[level]
        where = f"{run}: level {level}"
        if _median(rows[:, 0]) == float("inf"):
            yield f"{where}: the champion has no reading any more"
            continue
        plans = [entered.programs[at].plan.digest for at in of]
        apart = _apart(rows, 0, -1)
        champion, baseline = (said.get(plan, {}).get(level) for plan in (plans[0], plans[-1]))
        if len(of) > 1 and score(apart) > sure:
            yield f"{where}: the champion takes {float(np.exp(np.median(apart))) - 1:.1%} longer than the untuned plan"
        elif len(of) > 1 and champion and baseline and score(apart - np.log(champion / baseline) - np.log1p(DRIFTED)) > sure:
            slower = float(np.exp(np.median(apart))) / (champion / baseline) - 1
            yield f"{where}: the champion is {slower:.1%} slower than summary.json says, beside the untuned plan"
        for at in range(1, len(of) - 1):
            behind = _apart(rows, 0, at)
            if score(behind - TOLERANCE) > sure:
                yield f"{where}: plan {plans[at][:8]} of the log is {-np.expm1(-np.median(behind)):.1%} faster than the champion"


def _apart(rows: NDArray[np.int64], a: int, b: int) -> NDArray[np.float64]:
    """log a - log b, of the rounds in which neither failed."""
    both = rows[(rows[:, a] > FAILED) & (rows[:, b] > FAILED)]
    return np.log(both[:, a]) - np.log(both[:, b])
