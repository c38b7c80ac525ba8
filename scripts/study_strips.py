"""What strips of columns bring a run of operators: one segment in so many strips, against the best cut of it in two segments of whole rows.

Each segment is measured alone in every block count, with halos recomputed and cached, with a slot and with two for what is loaded; at each
level the best of them counts, and of two segments the sum.  A dash is a run that fits in none of these ways.

    python scripts/study_strips.py --out strips.csv --network light:vgg19 --operators 6 --operators 8
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compiler.space.gene import Gene, block_counts
from compiler.unit.unit import Unit
from scripts.studies import network
from simulator.npu.errors import TilefarmError
from tuner.commands.text import print_table
from tuner.evaluate import Ask, Evaluator

Cycles = NDArray[np.float64]  # of every level; infinity where nothing fits


def ways(unit: Unit, start: int, stop: int, columns: int) -> Iterator[Gene]:
    """Operators [start, stop) as one segment in `columns` strips."""
    for blocks in block_counts(unit, start, stop):
        for cached in (0, -1) if blocks > 1 else (0,):
            for prefetch in (1, 2):
                yield Gene(start, stop, blocks, prefetch, cached=cached, columns=columns)


def best(evaluator: Evaluator, start: int, stop: int, columns: int = 1) -> Cycles:
    """At each level that of the ways which is fastest there."""
    found = np.full(len(evaluator.levels), np.inf)
    for gene in ways(evaluator.unit, start, stop, columns):
        answer = evaluator.answer(Ask("segment", (gene,)))
        if answer.values is not None:
            found = np.minimum(found, answer.values[:, 0])
    return found


def rows_of(evaluator: Evaluator, start: int, stop: int, strips: list[int]) -> Iterator[tuple[str, Cycles]]:
    """(what, cycles): the run in each number of strips, and cut in two."""
    for columns in strips:
        yield f"{columns} strips" if columns > 1 else "whole rows", best(evaluator, start, stop, columns)
    cuts = [best(evaluator, start, at) + best(evaluator, at, stop) for at in range(start + 1, stop)]
    if cuts:
        yield "cut in two", np.min(cuts, 0)


def main(
    out: Annotated[Path, typer.Option(help="Where to write the table, as CSV.")],
    name: Annotated[str, typer.Option("--network", help="light:NAME, made:NAME or a file.")] = "light:vgg19",
    machine: Annotated[str, typer.Option(help="A preset or a YAML file.")] = "edge",
    first: Annotated[int, typer.Option(help="The first operator of the runs.")] = 0,
    operators: Annotated[list[int] | None, typer.Option(help="How many operators a run has; several times for several runs.")] = None,
    strips: Annotated[list[int] | None, typer.Option(help="Numbers of strips.")] = None,
) -> None:
    """Measure and print."""
    unit = network(name, machine)
    evaluator = Evaluator(unit, tuple(unit.machine.contention))
    lines = []
    for length in operators or [6, 8]:
        stop = min(len(unit.kernels), first + length)
        run = f"{unit.kernels[first].name}..{unit.kernels[stop - 1].name}"
        for what, cycles in rows_of(evaluator, first, stop, strips or [1, 2, 3, 4]):
            lines.append((run, what, *("-" if np.isinf(at) else int(at) for at in cycles)))
            print(f"{run}, {what}: done", file=sys.stderr)
    columns = ("operators", "segment", *evaluator.levels)
    with out.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *lines])
    print_table(("<operators", "<segment", *evaluator.levels), lines)


if __name__ == "__main__":
    try:
        typer.run(main)
    except TilefarmError as error:
        sys.exit(f"study_strips: {error}")
