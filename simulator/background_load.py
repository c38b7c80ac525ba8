"""Background load over time: traces from files and from generators.

A trace is piecewise constant: from `cycle` on a program has `share` of the DDR bandwidth, until the next row; the last row has no end.  A
file is CSV with the header `cycle,share`, or Parquet with these two columns.  Cycles are integers; shares are above 0 and at most 1.

Generators depend only on a seed (numpy's PCG64), so a trace is fixed before a controller sees it: the adversary is
oblivious (Borodin & El-Yaniv, Online Computation and Competitive Analysis, ch. 4).
"""

from __future__ import annotations

import csv
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simulator.ddr import ContentionTrace
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT, SHARES, in_units

Steps = list[tuple[int, int]]
_COLUMNS = ["cycle", "share"]
_MAX_CYCLE = 1 << 50  # 13 days at 1 GHz; later times of a run still fit int64
_MAX_ROWS = 4_000_000  # a Parquet file of a few bytes can claim any number
DWELL = 40  # least inferences per share in the generators, except `adversarial`


# files ---------------------------------------------------------------------------------------------------------------


def read_trace(path: Path) -> ContentionTrace:
    """A trace file: Parquet where the name ends in .parquet, else CSV.  Raises `BadInputError` with file, line (or row) and value."""
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    steps: Steps = []
    try:
        for where, cycle, share in rows:
            steps.append(_step(where, cycle, share, steps))
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise BadInputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not steps:
        raise BadInputError(f"{path}: no rows; accepted: at least one row, the first at cycle 0")
    return ContentionTrace.of(steps)


def _step(where: str, cycle: object, share: object, earlier_steps: Steps) -> tuple[int, int]:
    """One row, checked against the row before it."""
    if isinstance(cycle, str):
        cycle = int(cycle) if cycle.isascii() and cycle.isdecimal() and len(cycle) < 20 else cycle
    if not isinstance(cycle, int) or not 0 <= cycle <= _MAX_CYCLE:
        raise BadInputError(f"{where}: cycle {reprlib.repr(cycle)}; accepted: a whole number from 0 to {_MAX_CYCLE}")
    if not earlier_steps and cycle != 0:
        raise BadInputError(f"{where}: cycle {cycle} leaves a gap; accepted: 0 in the first row, so that the load is known from the start")
    if earlier_steps and cycle <= earlier_steps[-1][0]:
        raise BadInputError(f"{where}: cycle {cycle} after {earlier_steps[-1][0]}; accepted: cycles that ascend")
    try:
        return cycle, in_units(float(share) if isinstance(share, str | int | float) else math.nan)
    except (ValueError, OverflowError):
        raise BadInputError(f"{where}: share {reprlib.repr(share)}; accepted: {SHARES}, what the load leaves") from None


def _csv_rows(path: Path) -> Iterator[tuple[str, object, object]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        if [name.strip() for name in header] != _COLUMNS:
            raise BadInputError(f"{path}:1: {reprlib.repr(','.join(header))}; accepted: the header cycle,share")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if len(row) != 2:
                raise BadInputError(f"{where}: {reprlib.repr(','.join(row))} has {len(row)} values; accepted: cycle,share")
            yield where, row[0].strip(), row[1].strip()


def _parquet_rows(path: Path) -> Iterator[tuple[str, object, object]]:
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        if sorted(schema.names) != _COLUMNS:
            raise BadInputError(f"{path}: columns {shorten(', '.join(schema.names), 200)}; accepted: cycle (integer) and share (number)")
        if not pa.types.is_integer(schema.field("cycle").type):
            raise BadInputError(f"{path}: column cycle is {schema.field('cycle').type}; accepted: an integer type")
        if file.metadata.num_rows > _MAX_ROWS:
            raise BadInputError(f"{path}: {file.metadata.num_rows:,} rows; accepted: at most {_MAX_ROWS:,}")
        row = 0
        for batch in file.iter_batches(columns=_COLUMNS):
            for cycle, share in zip(batch.column("cycle").to_pylist(), batch.column("share").to_pylist(), strict=True):
                row += 1
                yield f"{path}: row {row}", cycle, share


# generators ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PortLoad:
    """Parameters of a generator.

    share_units: the shares to move between (in 1/65536).  inference_cycles: the unit of dwells; with the longest inference, a dwell holds
    for at least its number of inferences.  inferences: length of the trace in that unit.
    """

    share_units: tuple[int, ...]
    inference_cycles: int
    inferences: int

    def __post_init__(self) -> None:
        if not self.share_units or not all(1 <= share <= SHARE_UNIT for share in self.share_units):
            raise BadInputError(f"shares {self.share_units}: accepted: at least one, each 1..{SHARE_UNIT} (in 1/{SHARE_UNIT})")
        if self.inference_cycles < 1 or self.inferences < 1:
            raise BadInputError(f"{self.inferences} inferences of {self.inference_cycles} cycles: accepted: 1 or more of each")
        if self.inferences * self.inference_cycles > _MAX_CYCLE:
            raise BadInputError(f"{self.inferences} inferences of {self.inference_cycles} cycles: accepted: {_MAX_CYCLE} cycles in all")

    @property
    def light_to_heavy(self) -> list[int]:
        return sorted(set(self.share_units), reverse=True)


Draw = Callable[[PortLoad, np.random.Generator], Iterable[tuple[float, int]]]
"""(dwell in inferences, share_units) pairs, until the load is covered, or without end."""


def _staircase(load: PortLoad, rng: np.random.Generator) -> Iterable[tuple[float, int]]:
    """Shares in a random order, each once, for random lengths."""
    shares = rng.permutation(load.light_to_heavy).tolist()
    least = min(float(DWELL), load.inferences / len(shares))
    spare = load.inferences - least * len(shares)
    parts = rng.dirichlet(np.ones(len(shares))).tolist()
    return [(least + spare * part, share) for part, share in zip(parts, shares, strict=True)]


def _wave(load: PortLoad, rng: np.random.Generator) -> Iterator[tuple[float, int]]:
    """Alternation from light to heavy and back, every share for the same drawn length, from a drawn phase on."""
    shares = load.light_to_heavy
    circle = shares + shares[-2:0:-1]
    dwell, position = DWELL * (1 + rng.random()), int(rng.integers(len(circle)))
    while True:
        yield dwell, circle[position % len(circle)]
        position += 1


def _bursts(load: PortLoad, rng: np.random.Generator) -> Iterator[tuple[float, int]]:
    """The lightest load, and bursts of any weight up to the heaviest; lengths are memoryless beyond the least one."""
    shares = load.light_to_heavy
    while True:
        yield DWELL * (1 + rng.exponential()), shares[0]
        yield DWELL * (1 + rng.exponential()), round(shares[0] * (shares[-1] / shares[0]) ** rng.random())


def _adversary(load: PortLoad, rng: np.random.Generator) -> Iterator[tuple[float, int]]:
    """Alternation of the lowest and highest share, about as fast as a controller can follow: its last observation is wrong when it acts.

    A dwell lasts a quarter to two inferences; the length of an inference depends on the share.
    """
    shares = load.light_to_heavy
    while True:
        for share in (shares[0], shares[-1]):
            yield (0.25 + 1.75 * rng.random()) * shares[-1] / share, share


GENERATORS: Mapping[str, Draw] = {"step": _staircase, "periodic": _wave, "bursty": _bursts, "adversarial": _adversary}


def generate_trace(kind: str, seed: int, load: PortLoad) -> ContentionTrace:
    """A trace of one of `GENERATORS`; the same arguments give the same trace.  Raises `BadInputError`."""
    if kind not in GENERATORS:
        raise BadInputError(f"contention trace {kind!r}: accepted: {', '.join(GENERATORS)}")
    if seed < 0:
        raise BadInputError(f"contention trace {kind}: seed {seed}; accepted: 0 or more")
    rng = np.random.default_rng([list(GENERATORS).index(kind), seed])
    end = load.inferences * load.inference_cycles
    cycle, steps = 0, Steps()
    for dwell, share in GENERATORS[kind](load, rng):
        if cycle >= end:
            break
        if not steps or steps[-1][1] != share:
            steps.append((cycle, share))
        cycle += max(1, round(dwell * load.inference_cycles))
    return ContentionTrace.of(steps)
