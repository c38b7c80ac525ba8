"""Comparison of settings with the default on networks outside every study, at equal readings: the test that a preset must pass.

Each pair of network and seed is searched with the default and with every --config.  Its figure is the area between both curves: best so far
over the default's, geometric mean over levels and over numbers of readings, each twice the previous one (`tuner.study.curve`).  A preset
ships if the 95% interval of the geometric mean over all pairs (bootstrap) is below 1, and its final best is not significantly worse.

python scripts/judge_presets.py --config STUDY/best.yaml --measurements 6400 --networks resnet50,shufflenet --out presets
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import Arm, Pair, Row, Study, Table, command, geometric, groups, interval, over_pairs, span
from scripts.study_settings import DEFAULT, differences, total_cpu_s
from tuner.runs.anytime_curve import best_after
from tuner.study.curve import reading_counts


def rows(counts: Sequence[int], pair: Pair) -> Iterator[Row]:
    """A row per configuration and level."""
    best = {name: best_after(result.log, {}, pair.levels, counts) for name, result in pair.results.items()}
    for name, curves in best.items():
        log_ratio = np.log(curves) - np.log(best[DEFAULT])
        for level, row, cycles in zip(pair.levels, log_ratio, curves, strict=True):
            defined = row[~np.isnan(row)]  # before a program is known nobody is ahead
            area, last = float(np.exp(defined.sum() / len(counts))), float(np.exp(row[-1]))
            yield {"settings": name, "level": level, "area": area, "last": last, "cycles": int(cycles[-1]), "cpu_s": pair.cpu_s[name]}


def show_arms(rows: Sequence[Row]) -> Iterable[Table | str]:
    """A row for every configuration, and whether it ships."""
    arms, table = groups(rows, "settings"), []
    for (name,), arm_rows in arms.items():
        if name == DEFAULT:
            continue
        area, last = (over_pairs(arm_rows, key) for key in ("area", "last"))
        (low, high), last_interval = interval(area, geometric), interval(last, geometric)
        if low > 1:
            verdict = "is worse"
        elif high >= 1:
            verdict = "no difference shown"
        else:
            verdict = "ends behind" if last_interval[0] > 1 else "ships"
        texts = (text for values in (area, last) for text in (f"{geometric(values):.4f}", span(values, ".4f")))
        table.append((name, len(area), *texts, f"{total_cpu_s(arm_rows) / total_cpu_s(arms[DEFAULT,]):.2f}", verdict))
    yield "cycles over the default's: the area between the curves, and the best in the end; geometric means over levels and pairs"
    yield Table(("<settings", "pairs", "area", "95% interval", "in the end", "95% interval", "CPU", "<as a preset"), table)


def presets(
    study: Study,
    config: Annotated[list[str], typer.Option(help="A file of settings, a study's best.yaml say; repeatable.")],
    measurements: Annotated[int, typer.Option(min=1, help="Readings of each search.")] = 6400,
    points: Annotated[int, typer.Option(min=1, help="Numbers of readings at which curves are read.")] = 6,
) -> Study:
    budget = ("budget.candidates=null", "budget.seconds=null", f"budget.measurements={measurements}")
    arms = {DEFAULT: Arm(budget)} | {str(Path(file).with_suffix("")): Arm((*differences(file), *budget)) for file in config}
    return replace(study, arms=arms, rows=partial(rows, reading_counts(measurements, points)), inputs=(points,))


STUDY = Study(
    "presets", {}, partial(rows, ()), show_arms, "resnet50,shufflenet,made:efficientnet_b0,made:vit_b16", seeds=2, options=presets
)

if __name__ == "__main__":
    typer.run(command(STUDY, "Settings against the default at equal readings, on networks that are not those of the study."))
