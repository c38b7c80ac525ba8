"""What an audit found: figures by level, faults, and one sentence about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Timed:
    """Cycles of a program at a level: as the run said, and as whoever measured says now.  None where nothing is known."""

    then: int | None
    now: int | None

    @property
    def moved(self) -> float | None:
        """In parts of what the run said."""
        return self.now / self.then - 1 if self.then and self.now else None


@dataclass(frozen=True)
class Raced:
    """Champion and runners-up read again at one level, in rounds.

    races: that the rounds were dealt into; flips: of them, those with another winner.  rounds: readings of each.
    """

    champion: Timed
    untuned: Timed
    races: int
    flips: int
    rounds: int


@dataclass(frozen=True)
class Rivals:
    """Another simulator's opinion of a search's best programs at a level: the fastest of those that are not the champion.

    behind: its cycles over the champion's, minus 1; below 0 where another one wins now.
    """

    plan: str
    behind: float


@dataclass(frozen=True)
class Seeds:
    """Short searches with other seeds.  readings: of each; taken: of all, without what the run's log answers.

    own, others: level -> cycles of the best after so many, of the run and by seed.
    own is None where the run was measured by another simulator, or knew no program by then.
    """

    readings: int
    taken: int
    seeds: tuple[int, ...]
    own: Mapping[str, int | None]
    others: Mapping[str, tuple[int | None, ...]]

    def spread(self, level: str) -> tuple[float, float] | None:
        """Lowest and highest of the others over the run's own, minus 1; over the lowest of them where that is not known."""
        known = [cycles for cycles in self.others[level] if cycles is not None]
        if not known:
            return None
        base = self.own[level] or min(known)
        return min(known) / base - 1, max(known) / base - 1


@dataclass(frozen=True)
class Longer:
    """A longer search.  readings: of it.  cycles: level -> of its best.  regret: of the run's best over that, minus 1."""

    readings: int
    cycles: Mapping[str, int]
    regret: Mapping[str, float]


@dataclass(frozen=True)
class LevelAudit:
    """champion: the fastest program of the run at the level.  untuned: every operator alone, the faster one of the run's baseline and of
    what is compiled without a search.  raced: where a runner measures.  rival: where the simulator is another one than the run's."""

    champion: Timed
    untuned: Timed
    raced: Raced | None = None
    rival: Rivals | None = None


@dataclass(frozen=True)
class Audit:
    """simulator: then, and now.  runner: None for the simulator.  faults: why the run is not to be trusted, a line each.

    notes: what could not be asked, a line each.  readings: that the audit took; of: the run's.
    """

    what: str
    simulator: tuple[str, str]
    runner: str | None
    levels: Mapping[str, LevelAudit]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    seeds: Seeds | None
    longer: Longer | None
    readings: int
    of: int

    @property
    def sound(self) -> bool:
        return not self.faults

    def values(self) -> dict[str, Any]:
        """As JSON."""
        return {"sound": self.sound, **asdict(self), "verdict": self.verdict}

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.faults:
            count = len(self.faults)
            return f"{self.what} is not to be trusted: {count} fault{'s' if count > 1 else ''}, the first is {self.faults[0]}."
        return f"{self.what} is sound: {'; '.join(self._clauses())}."

    def _clauses(self) -> Iterator[str]:
        yield self._champions()
        yield "none is slower than the untuned plan"
        yield self._winners()
        spreads = [] if self.seeds is None else [found for level in self.levels if (found := self.seeds.spread(level)) is not None]
        if self.seeds is not None and spreads:
            most = max(abs(end) for spread in spreads for end in spread)
            yield f"{len(self.seeds.seeds)} other seeds are within {most:.1%} after {self.seeds.readings:,} readings"
        if self.longer is not None:
            level, regret = max(self.longer.regret.items(), key=lambda pair: pair[1])
            yield f"twice as many readings gain {regret:.1%}" + (f" at most, at {level}" if regret else "")

    def _champions(self) -> str:
        moved = {level: by for level, each in self.levels.items() if (by := each.champion.moved) is not None}
        then, now = self.simulator
        if self.runner is None and then == now:
            return "every champion takes the cycles that the run said"
        if not moved:
            return "champions could not be timed again"
        level = max(moved, key=lambda level: abs(moved[level]))
        who = f"simulator {now} times champions" if self.runner is None else "the board reads champions"
        before = f"than {then}" if self.runner is None else "than then"
        return f"{who} at most {abs(moved[level]):.1%} {'slower' if moved[level] > 0 else 'faster'} {before}, at {level}"

    def _winners(self) -> str:
        raced = {level: each.raced for level, each in self.levels.items() if each.raced is not None}
        if raced:
            level = max(raced, key=lambda level: raced[level].flips)
            most = raced[level]
            return f"under the runner's noise another program wins {most.flips} of {most.races} races" + (
                f", at {level}" if most.flips else ""
            )
        rivals = {level: each.rival for level, each in self.levels.items() if each.rival is not None}
        if not rivals:
            return "winners are exact, the simulator has no noise"
        level = min(rivals, key=lambda level: rivals[level].behind)
        ahead = -rivals[level].behind
        return f"another program of the log would win now by {ahead:.1%}, at {level}" if ahead > 0 else "the same programs would win now"
