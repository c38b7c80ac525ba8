"""`tilefarm compare`."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.terminal import print_line
from tuner.cli.group import without_threads
from tuner.cli.options import Json
from tuner.cli.text import print_json, print_table

app = new_app()


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="A run folder, or the URL of one.")],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="Another one.")],
    force: Annotated[bool, typer.Option("--force", help="Also where model, machine or simulator differ.")] = False,
    as_json: Json = False,
) -> None:
    without_threads()
    from tuner.store import standing
    from tuner.store.runs import open_run
    from tuner.world.url import place

    folders = place(first), place(second)
    found = standing.compare(open_run(folders[0]), open_run(folders[1]), force)
    ratios = {level: found.ratio(level) for level in found.cycles}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    if as_json:
        levels = {level: {"first": a, "second": b, "ratio": ratios[level]} for level, (a, b) in found.cycles.items()}
        counts = {"candidates": found.candidates, "lost_rows": found.lost}
        print_json({"first": str(folders[0]), "second": str(folders[1]), **counts, "levels": levels, "mean_ratio": mean})
        return
    print_line(f"best after {found.candidates:,} measured programs of each")
    for folder, lost in zip(folders, found.lost, strict=True):
        if lost:
            print_line(f"{folder}: {lost:,} rows of its log were lost, its best may be among them")
    rows = [(level, a, b, f"{ratios[level]:.4f}") for level, (a, b) in found.cycles.items()]
    print_table(("<level", *map(str, folders), "second / first"), [*rows, ("mean", None, None, f"{mean:.4f}")])
