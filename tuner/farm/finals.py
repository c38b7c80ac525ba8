"""Readings for the finals: a worker that holds the programs of one race, and turns of it sent there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.npu.errors import TilefarmError
from tuner.farm.each import Each
from tuner.measure.race import FAILED, Turn
from tuner.measure.reading import Bench, Encoded
from tuner.measure.runners import RunnerSpec

Finals = Each[Turn, list[int]]


@dataclass(frozen=True)
class FinalsSpec:
    """Makes what reads finalists.  programs: by their numbers in a turn."""

    runner: RunnerSpec
    programs: tuple[Encoded, ...]

    def __call__(self) -> FinalsWorker:
        bench = self.runner()
        assert bench is not None, "the simulator needs no finals: it says the same every time"
        return FinalsWorker(bench, self.programs)


@dataclass(frozen=True)
class FinalsWorker:
    """Cycles of a turn's programs, in its order, FAILED where there was no reading."""

    bench: Bench
    programs: tuple[Encoded, ...]

    def __call__(self, turn: Turn) -> list[int]:
        return [self.bench.once(self.programs[at], turn.level).cycles or FAILED for at in turn.programs]


def read(farm: Finals, turns: Sequence[Turn]) -> Iterator[list[int]]:
    """One after the other, as they come.  Raises `TilefarmError` where a turn took its worker along."""
    for turn, (cycles, error) in zip(turns, farm(turns), strict=True):
        if cycles is None:
            raise TilefarmError(f"level {turn.level}: finalists could not be measured again: {error}; --resume tries it again")
        yield cycles
