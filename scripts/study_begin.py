"""Study of the best program after a part of a search's measurements, compared with the search of another source tree.

A study records, for every network, seed and level, the tasks after which the best program improved.  The same study of another tree is the
reference: its final best cycles are 1, and its number of tasks is the unit.  Below 1 is faster.  Goals, in the geometric mean: within 1%
with a tenth of the reference's tasks, 2% faster with all of them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from scripts.studies import PAIR, Arm, Pair, Row, Study, Table, geometric, goal, groups, span

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
TENTH, ALL = 1.01, 0.98


def rows(pair: Pair) -> Iterator[Row]:
    """Row per level and per improvement of the best program, and of the baseline.  at: number of tasks measured until then."""
    (result,) = pair.results.values()
    log = result.log.sort_values("seq", kind="stable")
    order = {seq: position for position, seq in enumerate(sorted(log["seq"].unique()), 1)}
    programs = log[(log["kind"] == "program") & (log["status"] == "ok")]
    for level in pair.levels:
        level_rows = programs[programs["level"] == level]
        improves = level_rows["cycles"] < level_rows["cycles"].cummin().shift(fill_value=np.iinfo(np.int64).max)
        for seq, cycles in level_rows.loc[improves, ["seq", "cycles"]].itertuples(index=False):
            run_columns = {"tasks": result.tasks, "baseline": result.baseline_cycles[level], "cpu_s": next(iter(pair.cpu_s.values()))}
            yield {"level": level, "at": order[seq], "cycles": int(cycles), **run_columns}


def show(rows: Sequence[Row], against: Path | None = None) -> Iterator[Table | str]:
    """A line per network; the mean over pairs with its interval.  against: rows of the other tree; without, the same ones."""
    reference = groups(rows if against is None else read_csv(against), *PAIR)
    names = (*(f"{share:.0%}" for share in SHARES), "end", "baseline", "tasks", "CPU")
    curves = {pair: _ratios(ratios, reference[pair]) for pair, ratios in groups(rows, *PAIR).items() if pair in reference}
    networks = dict.fromkeys(pair[0] for pair in curves)
    by_network = {network: [curve for pair, curve in curves.items() if pair[0] == network] for network in networks}
    yield "cycles of the best program over the other one's in the end, after a share of the other one's tasks and in the end"
    yield Table(
        ("<network", *names),
        [(network, *(f"{values:.3f}" for values in np.exp(np.log(ratios).mean(0)))) for network, ratios in by_network.items()],
    )
    columns = dict(zip(names, np.array([*curves.values()]).T, strict=True))
    table = [(name, f"{geometric(values):.3f}", span(values, ".3f")) for name, values in columns.items()]
    yield Table(("", "over the other", "<95% interval"), table)
    for share, limit in ((0.1, TENTH), (1.0, ALL)):
        mean = geometric(columns[f"{share:.0%}"])
        yield f"goal, {limit:g} with {share:.0%} of the tasks: {mean:.4f}, {goal(mean <= limit)}"


def read_csv(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [{**row, "seed": int(row["seed"])} for row in csv.DictReader(file)]


def _ratios(pair_rows: Sequence[Row], reference: Sequence[Row]) -> list[float]:
    """After every share, in the end, of the baselines, of tasks and of CPU time."""
    baselines = _mean(*({row["level"]: int(row["baseline"]) for row in side} for side in (pair_rows, reference)))
    costs = (float(pair_rows[0][key]) / float(reference[0][key]) for key in ("tasks", "cpu_s"))
    return [*(_ratio_at(pair_rows, reference, share) for share in (*SHARES, None)), baselines, *costs]


def _ratio_at(pair_rows: Sequence[Row], reference: Sequence[Row], share: float | None) -> float:
    """Over the levels; share: of the other one's tasks, None for all that was measured."""
    limit = np.inf if share is None else share * float(reference[0]["tasks"])
    reference_best = {level: min(int(row["cycles"]) for row in level_rows) for level, level_rows in groups(reference, "level").items()}
    return _mean(
        {
            level: min(int(row["cycles"]) for row in level_rows if float(row["at"]) <= max(limit, 1))
            for level, level_rows in groups(pair_rows, "level").items()
        },
        reference_best,
    )


def _mean(cycles: Mapping[object, int], reference: Mapping[object, int]) -> float:
    return geometric([cycles[level] / reference[level] for level in reference])


def compare_with(
    study: Study, against: Annotated[Path | None, typer.Option(help="begin.csv of another tree.", exists=True, dir_okay=False)] = None
) -> Study:
    return replace(study, show=partial(show, against=against))


STUDY = Study(
    "begin",
    {"search": Arm()},
    rows,
    show,
    "squeezenet,shufflenet,inception_v1,resnet50,made:mobilenet_v2",
    candidates=96,
    options=compare_with,
)
