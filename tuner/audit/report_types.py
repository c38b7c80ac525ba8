"""Types of an audit: figures by level, faults, and a one-sentence verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TimingPair:
    """Cycles of a program at a level: reported by the run, and measured now.  None: unknown."""

    then: int | None
    now: int | None

    @property
    def moved(self) -> float | None:
        """Change since the run, as a fraction of its cycles."""
        return self.now / self.then - 1 if self.then and self.now else None


@dataclass(frozen=True)
class RaceFigures:
    """Champion and runners-up read again at one level, in rounds.

    races: groups of the rounds; flips: races with another winner.  rounds: readings of each program.
    """

    champion: TimingPair
    untuned: TimingPair
    races: int
    flips: int
    rounds: int


@dataclass(frozen=True)
class Rivals:
    """Verdict of another simulator on a search's best programs at a level: the fastest program other than the champion.

    behind: its cycles over the champion's, minus 1; below 0 where it wins now.
    """

    plan: str
    behind: float


@dataclass(frozen=True)
class SeedSearches:
    """Short searches with other seeds.  readings: readings of each search.  taken: readings of all searches that the run's log did not
    answer.

    own, others: level -> best cycles after `readings` readings: of the run, and by seed.
    own is None if another simulator measured the run, or the run had no program by then.
    """

    readings: int
    taken: int
    seeds: tuple[int, ...]
    own: Mapping[str, int | None]
    others: Mapping[str, tuple[int | None, ...]]

    def spread(self, level: str) -> tuple[float, float] | None:
        """Lowest and highest cycles of the other seeds over the run's, minus 1; over the lowest where the run's are unknown."""
        measured = [cycles for cycles in self.others[level] if cycles is not None]
        if not measured:
            return None
        base = self.own[level] or min(measured)
        return min(measured) / base - 1, max(measured) / base - 1


@dataclass(frozen=True)
class LongerSearch:
    """Longer search.  readings: total.  cycles: level -> best.  regret: cycles of the run's best / cycles of the longer search, minus 1."""

    readings: int
    cycles: Mapping[str, int]
    regret: Mapping[str, float]


@dataclass(frozen=True)
class LevelAudit:
    """Audit of one level.  champion: the fastest program of the run.  untuned: every operator on its own: the faster of the run's baseline
    and the default plan.  raced: if a runner measures.  rival: if the simulator differs from the run's."""

    champion: TimingPair
    untuned: TimingPair
    raced: RaceFigures | None = None
    rival: Rivals | None = None


@dataclass(frozen=True)
class Audit:
    """Outcome of an audit.  simulator: versions of the run and of today.  runner: None for the simulator.  faults: reasons for distrust, a
    line each.

    notes: checks that were impossible, a line each.  readings: readings that the audit used.  of: readings of the run.
    """

    what: str
    simulator: tuple[str, str]
    runner: str | None
    levels: Mapping[str, LevelAudit]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    seeds: SeedSearches | None
    longer: LongerSearch | None
    readings: int
    of: int

    @property
    def sound(self) -> bool:
        return not self.faults

    def values(self) -> dict[str, Any]:
        """JSON of the audit."""
        return {"sound": self.sound, **asdict(self), "verdict": self.verdict}

    @property
    def verdict(self) -> str:
        """Verdict in one sentence."""
        if self.faults:
            count = len(self.faults)
            return f"{self.what} is not to be trusted: {count} fault{'s' if count > 1 else ''}, the first is {self.faults[0]}."
        return f"{self.what} is sound: {'; '.join(self._clauses())}."

    def _clauses(self) -> Iterator[str]:
        yield self._champions()
        yield "none is slower than the untuned plan"
        yield self._winners()
        spreads = [] if self.seeds is None else [limits for level in self.levels if (limits := self.seeds.spread(level)) is not None]
        if self.seeds is not None and spreads:
            largest = max(abs(end) for spread in spreads for end in spread)
            yield f"{len(self.seeds.seeds)} other seeds are within {largest:.1%} after {self.seeds.readings:,} readings"
        if self.longer is not None:
            level, regret = max(self.longer.regret.items(), key=lambda pair: pair[1])
            yield f"twice as many readings gain {regret:.1%}" + (f" at most, at {level}" if regret else "")

    def _champions(self) -> str:
        moved = {level: change for level, level_audit in self.levels.items() if (change := level_audit.champion.moved) is not None}
        run_version, own_version = self.simulator
        if self.runner is None and run_version == own_version:
            return "every champion takes the cycles that the run said"
        if not moved:
            return "champions could not be timed again"
        level = max(moved, key=lambda level: abs(moved[level]))
        subject = f"simulator {own_version} times champions" if self.runner is None else "the board reads champions"
        comparison = f"than {run_version}" if self.runner is None else "than then"
        return f"{subject} at most {abs(moved[level]):.1%} {'slower' if moved[level] > 0 else 'faster'} {comparison}, at {level}"

    def _winners(self) -> str:
        raced = {level: level_audit.raced for level, level_audit in self.levels.items() if level_audit.raced is not None}
        if raced:
            level = max(raced, key=lambda level: raced[level].flips)
            most_flips = raced[level]
            return f"under the runner's noise another program wins {most_flips.flips} of {most_flips.races} races" + (
                f", at {level}" if most_flips.flips else ""
            )
        rivals = {level: level_audit.rival for level, level_audit in self.levels.items() if level_audit.rival is not None}
        if not rivals:
            return "winners are exact, the simulator has no noise"
        level = min(rivals, key=lambda level: rivals[level].behind)
        lead = -rivals[level].behind
        return f"another program of the log would win now by {lead:.1%}, at {level}" if lead > 0 else "the same programs would win now"
