"""What several frames in a run bring: cycles per frame, the latency that they cost, and bytes of DDR per frame.

For every network and number of frames the programs by prediction, or with --candidates those of a search, at every level; beside them the
bound of the whole batch.  Weights come once for a batch at best, so bytes per frame fall where weights are most of them.

    python scripts/study_frames.py --networks squeezenet,resnet50 --frames 1,2,4 --out frames
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import typer

from compiler.autoplan import quick_plans
from compiler.bound.bound import Bound
from compiler.build import measure_plans
from compiler.model import ModelSpec
from scripts.studies import Json, Out, Row, Table, champions, finish, groups, model_named, named, short, spent_s, write_rows
from simulator.objective import Pace
from tuner.in_process import Search
from tuner.zoo.load import open_network


def rows_of(name: str, machine: str, frames: int, candidates: int, settings: Sequence[str] = ()) -> list[Row]:
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
        moved = timing.ddr_read_bytes + timing.ddr_write_bytes
        rows.append({
            "network": short(name), "frames": frames, "level": level, "cycles": timing.cycles,
            **Pace.of(timing.cycles, target_graph.images, target_graph.machine.clock_hz)._asdict(),
            "ddr_bytes_per_frame": moved // target_graph.images,
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


def main(
    out: Out,
    networks: Annotated[str, typer.Option(help="With commas between them.")] = "squeezenet,resnet50",
    machine: Annotated[str, typer.Option(help="A preset or a YAML file.")] = "edge",
    frames: Annotated[str, typer.Option(help="Numbers of frames, with commas between them.")] = "1,2,4",
    candidates: Annotated[int, typer.Option(min=0, help="Measured programs of a search; 0: by prediction.")] = 0,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Of the search; repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Frames of a run: throughput beside latency."""
    rows: list[Row] = []
    for name in named(networks):
        for count in map(int, frames.split(",")):
            rows += rows_of(name, machine, count, candidates, settings or ())
            write_rows(out / "frames.csv", rows)
    finish("frames", out, rows, show(rows), spent_s(), as_json)


if __name__ == "__main__":
    typer.run(main)
