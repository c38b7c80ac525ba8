"""Are settings better than the default on networks that no study has seen, at equal readings?  What a preset has to show before it ships.

A pair of network and seed is searched with the default and with every --config.  Its figure is the area between both curves: best so far
over the default's, the geometric mean over levels and over numbers of readings, each twice the one before (`tuner.study.curve`).  A preset
ships where the 95% interval of the geometric mean over all pairs (bootstrap) is below 1, and the best in the end is not shown to be worse.

python scripts/judge_presets.py --config STUDY/best.yaml --measurements 6400 --networks resnet50,shufflenet --out presets
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import (
    Arm,
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
    groups,
    interval,
)
from scripts.study_settings import DEFAULT, differences
from tuner.runs.anytime_curve import best_after
from tuner.study.curve import counts_of


def rows(counts: Sequence[int], pair: Pair) -> Iterator[Row]:
    """Of every configuration and level."""
    best = {name: best_after(found.log, {}, pair.levels, counts) for name, found in pair.found.items()}
    for name, mine in best.items():
        over = np.log(mine) - np.log(best[DEFAULT])
        for level, row, cycles in zip(pair.levels, over, mine, strict=True):
            known = row[~np.isnan(row)]  # before a program is known nobody is ahead
            area, last = float(np.exp(known.sum() / len(counts))), float(np.exp(row[-1]))
            yield {"settings": name, "level": level, "area": area, "last": last, "cycles": int(cycles[-1]), "cpu_s": pair.cpu_s[name]}


def judged(found: Sequence[Row]) -> Iterable[Table | str]:
    """A row for every configuration, and whether it ships."""
    table, pair = [], ("network", "machine", "seed")
    cpu_s = {name: sum(each[0]["cpu_s"] for each in groups(mine, *pair).values()) for (name,), mine in groups(found, "settings").items()}
    for (name,), mine in groups(found, "settings").items():
        if name == DEFAULT:
            continue
        pairs = groups(mine, *pair).values()
        area, last = (np.array([geometric(np.array([row[key] for row in levels])) for levels in pairs]) for key in ("area", "last"))
        low, high = interval(area, geometric)
        ends = interval(last, geometric)
        verdict = "is worse" if low > 1 else "no difference shown" if high >= 1 else "ends behind" if ends[0] > 1 else "ships"
        table.append(
            (
                name,
                len(area),
                f"{geometric(area):.4f}",
                f"{low:.4f} .. {high:.4f}",
                f"{geometric(last):.4f}",
                f"{ends[0]:.4f} .. {ends[1]:.4f}",
                f"{cpu_s[name] / cpu_s[DEFAULT]:.2f}",
                verdict,
            )
        )
    yield "cycles over the default's: the area between the curves, and the best in the end; geometric means over levels and pairs"
    yield Table(("<settings", "pairs", "area", "95% interval", "in the end", "95% interval", "CPU", "<as a preset"), table)


def main(
    out: Out,
    config: Annotated[list[str], typer.Option(help="A file of settings, a study's best.yaml say; repeatable.")],
    networks: Networks = "resnet50,shufflenet,made:efficientnet_b0,made:vit_b16",
    machine: Machines = ["edge"],  # noqa: B006  typer's own default
    seeds: Seeds = 2,
    measurements: Annotated[int, typer.Option(min=1, help="Readings of each search.")] = 6400,
    points: Annotated[int, typer.Option(min=1, help="Numbers of readings at which curves are read.")] = 6,
    every: Set = None,
    processes: Processes = 1,
    as_json: Json = False,
) -> None:
    """Settings against the default at equal readings, on networks that are not those of the study."""
    budget = ("budget.candidates=null", "budget.seconds=null", f"budget.measurements={measurements}")
    arms = {DEFAULT: Arm(budget)} | {str(Path(file).with_suffix("")): Arm((*differences(file), *budget)) for file in config}
    study = Study("presets", arms, partial(rows, counts_of(measurements, points)), judged, given=(points,))
    found, cpu_s = conduct(study, out, networks, machine, measurements, seeds, every or (), processes)
    finish(study.name, out, found, judged(found), cpu_s, as_json)


if __name__ == "__main__":
    typer.run(main)
