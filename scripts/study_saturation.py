"""Study of the saturation of searches: expected against real gain of doubling the programs; savings and losses of an early end.

Every search runs to its budget.  Its saturation (`tuner.farm.saturation`) is read after a third and half of the programs, together with the
gain of the following doubling.  The early end is the first epoch with an expectation below a threshold (`budget.least_gain`).  Saved are
the programs after it, lost is their gain.  With other settings an epoch comes a few programs earlier or later, so the largest loss is over
all epochs with such an expectation.  One doubling in place of two is the estimate without a longer memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from scripts.studies import Arm, Pair, Row, Study, Table
from tuner.farm import saturation
from tuner.farm.saturation import Saturation
from tuner.measure.grants import NEVER

THRESHOLDS = (0.0005, 0.001, 0.002)
EPOCH = 4  # programs between two judgements
SEARCH = "search"


def read_programs(log_rows: object) -> NDArray[np.int64]:
    """int64 [programs, levels]: cycles in the order of measurement, NEVER where a program does not fit.  log_rows: a `SearchResult`."""
    log, levels = log_rows.log, log_rows.levels  # type: ignore[attr-defined]
    programs = log[log["kind"] == "program"].sort_values("seq", kind="stable")
    columns = [programs[programs["level"] == level] for level in levels]
    return np.stack([np.where(rows["status"] == "ok", rows["cycles"].fillna(NEVER), NEVER).astype(np.int64) for rows in columns], axis=1)


def judge(cycles: NDArray[np.int64]) -> Row:
    """Expected and realised gains of one search; for each threshold the early end, its loss, and the largest loss of any later end."""
    best = np.minimum.accumulate(cycles, 0)
    count = len(cycles)
    row: Row = {"programs": count}
    for doublings in (1, 2):
        expected = expectations(cycles, doublings)
        for threshold in THRESHOLDS:
            stops = [programs for programs, share in expected.items() if share < threshold]
            losses = [gain(best, end, count) for end in stops] or [0.0]
            row |= {f"end_{doublings}_{threshold}": stops[0] if stops else count, f"lost_{doublings}_{threshold}": losses[0]}
            row[f"most_{doublings}_{threshold}"] = max(losses)
    for part, programs in (("third", count // 3), ("half", count // 2)):
        row[f"{part}_expected"] = expected.get(programs - programs % EPOCH)
        row[f"{part}_realised"] = gain(best, programs, 2 * programs)
    return row


def gain(best: NDArray[np.int64], begin: int, end: int) -> float:
    """Share of the cycles that the programs from `begin` to `end` saved, a geometric mean over levels."""
    return 1 - exp(float(np.log(best[end - 1] / best[begin - 1]).mean()))


def expectations(cycles: NDArray[np.int64], doublings: int) -> dict[int, float]:
    """Programs -> expected gain, at every epoch where there is one."""
    expected, default = dict[int, float](), saturation.DOUBLINGS
    saturation.DOUBLINGS = doublings
    try:
        course = Saturation(None, cycles.shape[1])
        for end in range(EPOCH, len(cycles) + 1, EPOCH):
            course.note(end, cycles[end - EPOCH : end])
            if (share := course.expected) is not None:
                expected[end] = share
    finally:
        saturation.DOUBLINGS = default
    return expected


def rows(pair: Pair) -> Iterator[Row]:
    yield judge(read_programs(pair.results[SEARCH]))


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    yield "share of the cycles that twice the programs were expected to save, and saved, after a third and half of the programs"
    parts = [f"{part}_{figure}" for part in ("third", "half") for figure in ("expected", "realised")]
    names = ("<network", "<machine", "seed", "programs")
    yield Table.from_rows(rows, *names, *(f"{part.replace('_', ' ')}={part}:.2%" for part in parts))
    yield "programs saved by the end of saturated searches, and the share of the cycles lost; the most of any search, at any later end too"
    table = []
    for doublings in (1, 2):
        for threshold in THRESHOLDS:
            saved = [1 - row[f"end_{doublings}_{threshold}"] / row["programs"] for row in rows]
            losses = [row[f"lost_{doublings}_{threshold}"] for row in rows]
            ended_early = sum(share > 0 for share in saved)
            largest = max(row[f"most_{doublings}_{threshold}"] for row in rows)
            figures = f"{np.mean(saved):.0%}", f"{max(saved):.0%}", f"{np.mean(losses):.3%}", f"{largest:.3%}"
            table.append((f"{doublings}", f"{threshold:.2%}", f"{ended_early} of {len(rows)}", *figures))
    yield Table(("doublings", "threshold", "ended early", "saved", "most saved", "lost", "most lost"), table)


STUDY = Study(
    "saturation", {SEARCH: Arm()}, rows, show, networks="light:squeezenet,made:mobilenet_v2-small,made:randwire-small,made:bert_base-small",
    machines=("edge", "edge-shared"), candidates=384, seeds=1,
)  # fmt: skip
