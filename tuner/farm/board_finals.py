"""Finals on a board, if a board measures: winners of the finals become champions, and the summary has the board's cycles.

A worker holds the programs of one race; turns of the race are sent to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

from compiler.model import LoweredModel
from compiler.plan.plan import Plan, SegmentPlan
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import TilefarmError
from tuner.config import TuneConfig
from tuner.farm.isolated_map import IsolatedMap, each_here, each_on_ray
from tuner.farm.measurement_budget import Spending
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.log.read import read_log, read_tasks
from tuner.measure.grants import same_grants
from tuner.measure.runner_api import Bench, Encoded
from tuner.measure.runners import RunnerSpec, runner_spec
from tuner.runs.folder import SearchFolder
from tuner.selection.finals import BoardFailedError, Contender, Finalist, Standing, Verdict, contenders, decide_finals, finalists
from tuner.selection.finals_journal import Readings
from tuner.selection.race import FAILED, TOLERANCE, Turn
from tuner.summary import FinalistSummary, LevelSummary, PieceSummary, RunnerSummary, rounded_pace

Finals = IsolatedMap[Turn, list[int]]


@dataclass(frozen=True)
class FinalsSpec:
    """Specification of a reader of finalists.  programs: finalists by their numbers in a turn."""

    runner: RunnerSpec
    programs: tuple[Encoded, ...]

    def __call__(self) -> FinalsWorker:
        bench = self.runner()
        assert bench is not None, "the simulator needs no finals: it says the same every time"
        return FinalsWorker(bench, self.programs)


@dataclass(frozen=True)
class FinalsWorker:
    """Cycles of a turn's programs, in its order, FAILED without a reading."""

    bench: Bench
    programs: tuple[Encoded, ...]

    def __call__(self, turn: Turn) -> list[int]:
        return [self.bench.once(self.programs[index], turn.level).cycles or FAILED for index in turn.programs]


def read(farm: Finals, turns: Sequence[Turn]) -> Iterator[list[int]]:
    """Read turns in sequence; yields their cycles.  Raises `TilefarmError` if a turn crashed its worker."""
    for turn, (cycles, error) in zip(turns, farm(turns), strict=True):
        if cycles is None:
            raise TilefarmError(f"level {turn.level}: finalists could not be measured again: {error}; --resume tries it again")
        yield cycles


def verdicts(
    lowered: LoweredModel,
    searches: Sequence[SearchedSubgraph],
    places: Sequence[SearchFolder],
    baselines: Mapping[str, Sequence[Plan]],
    config: TuneConfig,
    spending: Spending,
    address: str | None,
    say: Callable[[str], None],
) -> tuple[Verdict, ...]:
    """Verdicts of all searches.  places: folders of the run, whose log is closed.  spending: budget of the finals.  say: prints a line.

    baselines: first level of a group with equal grants -> baseline of every search, for its first subgraph.  Each group has a race of its
    own.
    """
    levels = tuple(lowered.machine.contention)
    groups = [tuple(levels[index] for index in group) for group in same_grants(lowered.machine, levels)]
    log, tasks = read_log(places[0].path), read_tasks(places[0].path)
    limit = None if spending.measurements is None else spending.finals
    search_verdicts = []
    for index, (search, place) in enumerate(zip(searches, places, strict=True)):
        plans = finalists(log, tasks, search.run, levels, spending.finalists)
        bases = [baselines[group[0]][index] for group in groups]
        able = contenders(lowered.packed[search.pieces[0]], [*plans, *bases], levels)
        races = [
            _Race(group, [contender for contender in able[: len(plans)] if group[0] in contender.simulated], base)
            for group, base in zip(groups, able[len(plans) :], strict=True)
        ]
        digests = [contender.plan.digest for race in races for contender in (*race.entered, race.baseline)]
        journal = Readings(place.checkpoint, digests, limit)
        piece = f"{lowered.names[search.pieces[0]]}: " if len(lowered.names) > 1 else ""
        say_of_piece = partial(_say_of_piece, say, piece)
        race_verdicts = []
        for race in races:
            race_limit = limit and limit * len(race.levels) // len(levels)  # shares of the races by their levels
            race_verdicts.append(_verdict(race, journal, config, race_limit, address, say_of_piece))
        search_verdicts.append(Verdict.of(race_verdicts))
    return tuple(search_verdicts)


class _Race(NamedTuple):
    """Levels with equal grants, and the programs that fit them."""

    levels: tuple[str, ...]
    entered: Sequence[Contender]
    baseline: Contender


def _verdict(
    race: _Race, journal: Readings, config: TuneConfig, limit: int | None, address: str | None, say: Callable[[str], None]
) -> Verdict:
    levels, entered, baseline = race
    spec, budget = runner_spec(config), config.runner.readings
    assert spec is not None
    programs = tuple(contender.program for contender in (*entered, baseline))
    limit_text = "" if limit is None else f", {limit:,} readings in all"
    say(f"finals: {len(entered)} programs and the baseline are read again at {len(levels)} levels, {budget} times each at most{limit_text}")

    def report(rounds: int, reads: Mapping[str, int]) -> None:
        if any(reads.values()):
            undecided = ", ".join(f"{level} {count}" for level, count in reads.items() if count)
            say(f"finals: {rounds} readings each; not told apart yet: {undecided}")

    with farm_of_finals(FinalsSpec(spec, programs), config, address) as farm:
        try:
            verdict = decide_finals(
                entered, baseline, levels, budget, lambda turns: journal.measured(turns, partial(read, farm)), report, limit
            )
        except BoardFailedError:
            journal.forget()
            raise
    for line in _lines(verdict, levels):
        say(line)
    return verdict


def _say_of_piece(say: Callable[[str], None], piece: str, line: str) -> None:
    say(f"{piece}{line}")


def _lines(verdict: Verdict, levels: Sequence[str]) -> list[str]:
    """Results for a person, level by level."""
    lines = []
    for level in levels:
        standings = Counter(finalist.standing[level] for finalist in verdict.finalists if level in finalist.standing)
        standing_counts = [f"{standings[standing]} {standing}" for standing in get_args(Standing)[1:] if standings[standing]]
        readings = sum(finalist.readings.get(level, 0) for finalist in (*verdict.finalists, *verdict.baselines))
        description = f"the simplest of those within {TOLERANCE:.1%} of the fastest" if standings["not told apart"] else "the fastest"
        out = "; ".join(
            [f"{description} is {verdict.plans[level].digest[:12]}", *filter(None, [", ".join(standing_counts)]), f"{readings:,} readings"]
        )
        lines.append(f"finals, {level}: {out}")
    return lines


def farm_of_finals(spec: FinalsSpec, config: TuneConfig, address: str | None) -> AbstractContextManager[Finals]:
    """One worker: finalists are compared on one board."""
    if config.farm.backend == "serial":
        return each_here(spec)
    return each_on_ray(spec, 1, address, config.farm.wait_s, "finals", config.farm.resource)


def plan_for(plan: Plan, source: TargetGraph, target_graph: TargetGraph) -> Plan:
    """The plan of a piece for another one that computes the same: the same segments, its own names.  source: the piece that it is for."""
    names = {a.name: b.name for a, b in zip(source.operators, target_graph.operators, strict=True)}
    tensors = {a.name: b.name for a, b in zip(source.storages, target_graph.storages, strict=True)}

    def rename_segment(segment: SegmentPlan) -> SegmentPlan:
        operators, staged = (tuple(names[name] for name in names_in_plan) for names_in_plan in (segment.operators, segment.staged))
        shared, held = (tuple(tensors[name] for name in names_in_plan) for names_in_plan in (segment.shared, segment.held))
        return segment.model_copy(update={"operators": operators, "staged": staged, "shared": shared, "held": tuple(sorted(held))})

    return plan.model_copy(update={"model": target_graph.graph.digest, "segments": tuple(map(rename_segment, plan.segments))})


def cycles_read(
    searches: Sequence[SearchedSubgraph], verdicts_of_searches: Sequence[Verdict], plans: Sequence[Plan], levels: Sequence[str]
) -> dict[str, int]:
    """Cycles of a plan of the model as read on the board, by level, if all of it ran there: a sum over subgraphs.

    plans: per search, the plan of a finalist or of the baseline.
    """
    out = {}
    for level in levels:
        search_cycles = [verdict.cycles(plan, level) for verdict, plan in zip(verdicts_of_searches, plans, strict=True)]
        ran = [cycles for cycles in search_cycles if cycles is not None]
        if len(ran) == len(search_cycles):
            out[level] = sum(len(search.pieces) * cycles for search, cycles in zip(searches, ran, strict=True))
    return out


def levels_read(
    simulated: Mapping[str, LevelSummary], read: Mapping[str, Mapping[str, int]], baselines: Mapping[str, Plan], lowered: LoweredModel
) -> dict[str, LevelSummary]:
    """Levels with the board's cycles in place of the simulator's.  read: digest of a plan -> `cycles_read`."""
    out = {}
    for level, row in simulated.items():
        variants = {variant: read[variant_row.plan].get(level) for variant, variant_row in simulated.items()}
        cycles, base = read[row.plan][level], read[baselines[level].digest][level]
        out[level] = row.model_copy(
            update={
                "cycles": cycles,
                **rounded_pace(cycles, lowered.frames, lowered.machine.clock_hz),
                "baseline_layerwise_cycles": base,
                "speedup": base / cycles,
                "variant_cycles": variants,
            }
        )
    return out


def pieces_read(
    simulated: Sequence[PieceSummary],
    searches: Sequence[SearchedSubgraph],
    verdicts_of_searches: Sequence[Verdict],
    shipped: Mapping[str, Sequence[Plan]],
) -> tuple[PieceSummary, ...]:
    """Subgraphs with the board's cycles.  shipped: level -> shipped program of every search."""
    number = {search.run: index for index, search in enumerate(searches)}
    out = []
    for piece in simulated:
        index = number[piece.search]
        read = {level: verdicts_of_searches[index].cycles(shipped[level][index], level) for level in piece.cycles}
        out.append(piece.model_copy(update={"cycles": read}))
    return tuple(out)


def runner_summary(config: TuneConfig, searches: Sequence[SearchedSubgraph], verdicts_of_searches: Sequence[Verdict]) -> RunnerSummary:
    """Runner, number of repeats, and cycles in the finals."""
    rows = [
        _row(search, finalist)
        for search, verdict in zip(searches, verdicts_of_searches, strict=True)
        for finalist in (*verdict.finalists, *verdict.baselines)
    ]
    return RunnerSummary(name=config.runner.name, repeats=config.runner.repeats, readings=config.runner.readings, finalists=tuple(rows))


def readings_taken(verdicts_of_searches: Sequence[Verdict]) -> int:
    """Number of readings in the finals."""
    return sum(sum(finalist.readings.values()) for verdict in verdicts_of_searches for finalist in (*verdict.finalists, *verdict.baselines))


def _row(search: SearchedSubgraph, finalist: Finalist) -> FinalistSummary:
    contender = finalist.contender
    return FinalistSummary(
        search=search.run,
        plan=contender.plan.digest,
        segments=len(contender.plan.segments),
        instructions=contender.instructions,
        cycles=dict(finalist.cycles),
        spread=dict(finalist.spread),
        readings=dict(finalist.readings),
        standing=dict(finalist.standing),
        simulated_cycles=dict(contender.simulated),
    )
