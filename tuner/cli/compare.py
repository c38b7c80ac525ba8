"""Command `tilefarm compare`: two runs, level by level; for continuous integration, whether the second may replace the first."""

from __future__ import annotations

import math
import re
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.group import without_threads
from tuner.cli.options import Json
from tuner.cli.text import print_json, print_table

app = new_app()


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="A run folder, or the URL of one.")],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="Another run folder, or the URL of one.")],
    force: Annotated[bool, typer.Option("--force", help="Compare even if model, machine or simulator differ.")] = False,
    fail_if_slower: Annotated[
        str | None, typer.Option(metavar="X%", help="Exit 1 where the second needs more than X% more cycles at any level, e.g. 2%.")
    ] = None,
    as_json: Json = False,
) -> int:
    without_threads()
    from tuner.platform.remote_files import place
    from tuner.runs import progress
    from tuner.runs.list_runs import open_run

    allowed_percent = None if fail_if_slower is None else _percent(fail_if_slower)
    folders = place(first), place(second)
    comparison = progress.compare_runs(open_run(folders[0]), open_run(folders[1]), force)
    ratios = {level: comparison.ratio(level) for level in comparison.cycles}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))  # geometric mean, since these are ratios
    slower_levels = (
        [] if allowed_percent is None else [level for level, (a, b) in comparison.cycles.items() if b > a * (1 + allowed_percent / 100)]
    )
    if as_json:
        levels = {level: {"first": a, "second": b, "ratio": ratios[level]} for level, (a, b) in comparison.cycles.items()}
        counts = {"candidates": comparison.candidates, "lost_rows": comparison.lost}
        verdict = {} if allowed_percent is None else {"allowed_percent": allowed_percent, "slower": slower_levels}
        print_json({"first": str(folders[0]), "second": str(folders[1]), **counts, "levels": levels, "mean_ratio": mean, **verdict})
        return int(bool(slower_levels))
    print_line(f"best after {comparison.candidates:,} measured programs of each")
    for folder, lost_rows_count in zip(folders, comparison.lost, strict=True):
        if lost_rows_count:
            print_line(f"{folder}: {lost_rows_count:,} rows of the log were lost; the best program may be among them")
    rows = [(level, a, b, f"{ratios[level]:.4f}") for level, (a, b) in comparison.cycles.items()]
    print_table(("<level", *map(str, folders), "second / first"), [*rows, ("mean", None, None, f"{mean:.4f}")])
    if allowed_percent is not None:
        finding = (
            f"more than {allowed_percent:g}% slower at {', '.join(slower_levels)}"
            if slower_levels
            else f"nowhere more than {allowed_percent:g}% slower"
        )
        print_line(f"{folders[1]}: {finding} than {folders[0]}")
    return int(bool(slower_levels))


def _percent(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?%?", text):
        raise BadInputError(f"--fail-if-slower {text}: expected a share in percent, e.g. 2%")
    return float(text.removesuffix("%"))
