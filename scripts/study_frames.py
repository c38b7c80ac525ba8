"""What several frames in a run bring: cycles per frame, the latency that they cost, and bytes of DDR per frame.

For every network and number of frames the programs by prediction, or with --candidates those of a search, at every level; beside them the
bound of the whole batch.  Weights come once for a batch at best, so bytes per frame fall where weights are most of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import geometric_mean
from typing import Annotated

import typer

from compiler.autoplan import quick_plans
from compiler.bound.bound import Bound
from compiler.build import measure_plans
from compiler.model import ModelSpec
from scripts.studies import Pair, Row, Study, Table, champions, groups, model_named, short
from scripts.traffic import moved_bytes
from simulator.npu.machine import Machine
from simulator.objective import Pace
from tuner.in_process import Search
from tuner.zoo.load import open_network


def rows_of(name: str, machine: str | Machine, frames: int, candidates: int, settings: Sequence[str] = ()) -> list[Row]:
    """A row per level.  candidates: measured programs; 0 for those by prediction."""
    opened = open_network(ModelSpec.named(model_named(name), machine, "float16", {}, None, frames))
    target_graph = opened.target_graph
    if candidates:
        found = Search(target_graph, candidates=candidates, settings=tuple(settings)).run()
        measured = champions(found.target_graph, found)
    else:
        measured = measure_plans(opened.compiler, quick_plans(opened))
    bound, rows = Bound(target_graph), list[Row]()
    for level, each in measured.items():
        timing = each.timings[level]
        rows.append({
            "network": short(name), "frames": frames, "level": level, "cycles": timing.cycles,
            **Pace.of(timing.cycles, target_graph.images, target_graph.machine.clock_hz)._asdict(),
            "ddr_bytes_per_frame": moved_bytes(timing) // target_graph.images,
            "bound": bound.of(level).cycles, "over_bound": timing.cycles / bound.of(level).cycles,
        })  # fmt: skip
    return rows


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Levels side by side, as other tables of champions have them."""
    table = []
    for (name, frames), mine in groups(rows, "network", "frames").items():
        cells = (
            [f"{row['cycles_per_frame']:,.0f}" for row in mine],
            [f"{row['latency_us']:,.0f}" for row in mine],
            [f"{row['ddr_bytes_per_frame'] / 1e6:.1f}" for row in mine],
            [f"{row['over_bound']:.2f}" for row in mine],
        )
        table.append((name, frames, *(" / ".join(each) for each in cells)))
    yield Table(("<network", "frames", "cycles per frame", "latency, us", "DDR MB per frame", "over the bound"), table)
    per_frame = {(row["network"], row["frames"], row["level"]): row["cycles_per_frame"] for row in rows}
    for (frames,), mine in groups([row for row in rows if row["frames"] > 1], "frames").items():
        faster = groups([row for row in mine if (row["network"], 1, row["level"]) in per_frame], "level")
        means = [
            f"{geometric_mean(per_frame[row['network'], 1, level] / row['cycles_per_frame'] for row in each):.3f} at {level}"
            for (level,), each in faster.items()
        ]
        if means:
            yield f"{frames} frames over one, geometric mean of cycles per frame: {', '.join(means)}."


def rows(counts: Sequence[int], candidates: int, settings: Sequence[str], pair: Pair) -> Iterator[Row]:
    for count in counts:
        yield from rows_of(pair.name, pair.target_graph.machine, count, candidates, settings)


def of_frames(
    study: Study,
    frames: Annotated[str, typer.Option(help="Numbers of frames, with commas between them.")] = "1,2,4",
    candidates: Annotated[int, typer.Option(min=0, help="Measured programs of a search; 0: by prediction.")] = 0,
) -> Study:
    counts = tuple(map(int, frames.split(",")))
    return replace(study, rows=partial(rows, counts, candidates, study.overrides), given=(*counts, candidates))


STUDY = Study("frames", {}, partial(rows, (), 0, ()), show, "squeezenet,resnet50", seeds=1, options=of_frames)
