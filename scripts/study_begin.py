"""How good is the best program after a part of a search's measurements, against the search of another tree?

A study of one tree keeps, of every network, seed and level, the tasks after which there was a better program.  The same study of another
tree is what it is held against: its best cycles in the end are 1, and its tasks are the unit.  Below 1 is faster.  Goals, in the geometric
mean: within 1% with a tenth of the other one's tasks, 2% faster with all of them.

    python scripts/study_begin.py --out begin
    python scripts/study_begin.py --out begin --against OTHER/begin.csv
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import (
    Arm,
    Candidates,
    Json,
    Machines,
    Networks,
    Out,
    Pair,
    Processes,
    Row,
    Seeds,
    Set,
    Study,
    Table,
    conduct,
    finish,
    geometric,
    goal,
    groups,
    interval,
)  # fmt: skip

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
TENTH, ALL = 1.01, 0.98
PAIR = ("network", "machine", "seed")


def rows(pair: Pair) -> Iterator[Row]:
    """Of every level and every program that was the best so far, and of the baseline.  at: tasks measured until then."""
    (result,) = pair.found.values()
    log = result.log.sort_values("seq", kind="stable")
    order = {seq: at for at, seq in enumerate(sorted(log["seq"].unique()), 1)}
    programs = log[(log["kind"] == "program") & (log["status"] == "ok")]
    for level in pair.levels:
        mine = programs[programs["level"] == level]
        better = mine["cycles"] < mine["cycles"].cummin().shift(fill_value=np.iinfo(np.int64).max)
        for seq, cycles in mine.loc[better, ["seq", "cycles"]].itertuples(index=False):
            of_run = {"tasks": result.tasks, "baseline": result.baseline_cycles[level], "cpu_s": next(iter(pair.cpu_s.values()))}
            yield {"level": level, "at": order[seq], "cycles": int(cycles), **of_run}


def show(found: Sequence[Row], against: Sequence[Row]) -> Iterator[Table | str]:
    """A line per network; the mean over pairs with its interval.  against: of the other tree."""
    other = groups(against, *PAIR)
    pairs = {pair: mine for pair, mine in groups(found, *PAIR).items() if pair in other}
    curves = {pair: [_over(mine, other[pair], share) for share in SHARES] for pair, mine in pairs.items()}
    ends = {
        pair: [_over(mine, other[pair], None), _baselines(mine, other[pair]), *_costs(mine, other[pair])] for pair, mine in pairs.items()
    }
    table = []
    for network in dict.fromkeys(pair[0] for pair in pairs):
        mine = [np.array(curves[pair] + ends[pair]) for pair in pairs if pair[0] == network]
        table.append((network, *(f"{each:.3f}" for each in np.exp(np.log(mine).mean(0)))))
    yield "cycles of the best program over the other one's in the end, after a share of the other one's tasks and in the end"
    yield Table(("<network", *(f"{share:.0%}" for share in SHARES), "end", "baseline", "tasks", "CPU"), table)
    means = np.array([curves[pair] + ends[pair] for pair in pairs])
    names = (*(f"{share:.0%}" for share in SHARES), "end", "baseline", "tasks", "CPU")
    yield Table(
        ("", "over the other", "<95% interval"),
        [
            (name, f"{geometric(each):.3f}", "{:.3f} .. {:.3f}".format(*interval(each, geometric)))
            for name, each in zip(names, means.T, strict=True)
        ],
    )
    for share, limit in ((0.1, TENTH), (1.0, ALL)):
        mean = geometric(means[:, SHARES.index(share)])
        yield f"goal, {limit:g} with {share:.0%} of the tasks: {mean:.4f}, {goal(mean <= limit)}"


def _over(mine: Sequence[Row], other: Sequence[Row], share: float | None) -> float:
    """Over the levels; share: of the other one's tasks, None for all that was measured."""
    limit = np.inf if share is None else share * float(other[0]["tasks"])
    ends = {level: min(int(row["cycles"]) for row in each) for level, each in groups(other, "level").items()}
    return _mean(
        {
            level: min(int(row["cycles"]) for row in each if float(row["at"]) <= max(limit, 1))
            for level, each in groups(mine, "level").items()
        },
        ends,
    )


def _baselines(mine: Sequence[Row], other: Sequence[Row]) -> float:
    return _mean(*({row["level"]: int(row["baseline"]) for row in each} for each in (mine, other)))


def _costs(mine: Sequence[Row], other: Sequence[Row]) -> list[float]:
    """Tasks and CPU time."""
    return [float(mine[0][key]) / float(other[0][key]) for key in ("tasks", "cpu_s")]


def _mean(cycles: Mapping[object, int], other: Mapping[object, int]) -> float:
    return geometric(np.array([cycles[level] / other[level] for level in other]))


def _nothing(_: Sequence[Row]) -> tuple[()]:
    """What it is held against is an option; a function with a name, since processes are sent the study."""
    return ()


STUDY = Study(
    "begin", {"search": Arm()}, rows, _nothing,
    networks="squeezenet,shufflenet,inception_v1,resnet50,made:mobilenet_v2", candidates=96, seeds=3,
)  # fmt: skip


def main(
    out: Out,
    against: Annotated[Path | None, typer.Option(help="begin.csv of another tree.", exists=True, dir_okay=False)] = None,
    networks: Networks = STUDY.networks,
    machine: Machines = list(STUDY.machines),  # noqa: B006  typer's own default
    candidates: Candidates = STUDY.candidates,
    seeds: Seeds = STUDY.seeds,
    settings: Set = None,
    processes: Processes = 1,
    as_json: Json = False,
) -> None:
    """How good the best program is after a part of a search's measurements, against the search of another tree."""
    found, cpu_s = conduct(STUDY, out, networks, machine, candidates, seeds, settings or (), processes)
    with against.open(newline="") if against else (out / "begin.csv").open(newline="") as file:
        other = [{**row, "seed": int(row["seed"])} for row in csv.DictReader(file)]
    finish(STUDY.name, out, found, show(found, other), cpu_s, as_json)


if __name__ == "__main__":
    typer.run(main)
