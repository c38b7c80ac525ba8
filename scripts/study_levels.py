"""Is a variant per level worth it, and is each level's champion as good as a search for that level alone?

For every network and seed: one search for all levels; the champion of every level timed at every level (the matrix variant x level).  Then,
for each level, a search on the same machine with that level only and --times the budget: how much better it is than the champion.

    python scripts/study_levels.py --out levels

Prints both tables (medians over the seeds) and writes levels.csv.  Goals: half of the networks gain 2 % or more at the heaviest level over
the variant made for the lightest; every champion is within 2 % of the search for its level alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.frontend.zoo import resolve
from scripts.studies import write_rows
from simulator.npu.machine import Machine, load_machine
from tuner.commands.text import print_table
from tuner.driver import tune
from tuner.folder.runfolder import read_json
from tuner.request import TuneRequest

GAIN, NEAR = 0.02, 0.02
NETWORKS = "light:squeezenet,light:shufflenet,light:inception_v1,light:resnet50,made:mobilenet_v2"
Cycles = Mapping[str, Mapping[str, int]]  # level -> variant -> cycles


def searched(network: str, machine: str, out: Path, candidates: int, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """The levels of the summary of a run; one that is there already is read."""
    if not (out / "summary.json").is_file():
        path, weights = resolve(Path(network), None)
        overrides = tuple(settings)
        tune(TuneRequest(path, machine, out, candidates, None, seed, None, overrides, backend="serial", random_weights=weights, quiet=True))
    levels: dict[str, Any] = read_json(out / "summary.json")["levels"]
    return levels


def only(machine: Machine, level: str, folder: Path) -> Path:
    """The machine as a file, with one level."""
    path = folder / f"{machine.name}-{level}.yaml"
    raw = machine.model_dump(mode="json") | {"contention": {level: machine.contention[level]}}
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def study(network: str, seed: int, machine: str, out: Path, candidates: int, times: int, settings: Sequence[str]) -> list[dict[str, Any]]:
    """A row per level: cycles of every variant there, and of the search for that level alone."""
    folder = out / f"{network.replace(':', '-').replace(',', '-')}.{seed}"
    together = searched(network, machine, folder / "all", candidates, seed, settings)
    known, rows = load_machine(machine), []
    for level, found in together.items():
        one = str(only(known, level, out))
        alone = searched(network, one, folder / level, times * candidates, seed, settings)[level]["cycles"]
        row = {"network": network, "seed": seed, "level": level, "cycles": found["cycles"], "alone_cycles": alone}
        rows.append(row | {f"variant_{name}": cycles for name, cycles in found["variant_cycles"].items()})
    return rows


def medians(rows: Sequence[Mapping[str, Any]], levels: Sequence[str]) -> list[dict[str, Any]]:
    """Per network and level, medians over the seeds: variants over the champion of the level, and the champion over the search alone."""
    out = []
    for network in dict.fromkeys(row["network"] for row in rows):
        for level in levels:
            mine = [row for row in rows if row["network"] == network and row["level"] == level]
            over = {name: median(row[f"variant_{name}"] / row["cycles"] - 1 for row in mine) for name in levels}
            alone = median(row["cycles"] / row["alone_cycles"] - 1 for row in mine)
            out.append({"network": network, "level": level, "cycles": median(row["cycles"] for row in mine), "over": over, "alone": alone})
    return out


def show(found: Sequence[Mapping[str, Any]], levels: Sequence[str], times: int) -> None:
    print_table(
        ["<network", "<at level", "champion", *(f"variant {name}" for name in levels), f"champion over alone x{times}"],
        [
            (row["network"], row["level"], int(row["cycles"]), *(f"{row['over'][name]:+.2%}" for name in levels), f"{row['alone']:+.2%}")
            for row in found
        ],
    )
    lightest, heaviest = levels[0], levels[-1]
    gains = {row["network"]: row["over"][lightest] for row in found if row["level"] == heaviest}
    enough = sum(gain >= GAIN for gain in gains.values())
    print(
        f"\n{enough} of {len(gains)} networks gain {GAIN:.0%} or more at {heaviest} over the variant made for {lightest} "
        f"(goal: half): {'reached' if 2 * enough >= len(gains) else 'missed'}"
    )
    near = sum(row["alone"] <= NEAR for row in found)
    worst = max(found, key=lambda row: float(row["alone"]))
    print(
        f"{near} of {len(found)} champions are within {NEAR:.0%} of a search for their level alone with {times} times the budget "
        f"(goal: all): {'reached' if near == len(found) else 'missed'}; worst {worst['alone']:+.2%}, {worst['network']} at {worst['level']}"
    )


def main(
    out: Annotated[Path, typer.Option(help="folder for the runs; finished runs in it are used again")],
    networks: Annotated[str, typer.Option(help="comma-separated networks")] = NETWORKS,
    machine: Annotated[str, typer.Option()] = "edge",
    candidates: Annotated[int, typer.Option(help="budget of the search for all levels")] = 64,
    times: Annotated[int, typer.Option(help="budget of a search for one level, in multiples")] = 3,
    seeds: Annotated[int, typer.Option(help="seeds 0..")] = 1,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="as in tilefarm tune")] = None,
) -> None:
    """The variant of every level at every level, and each champion against a search for its level alone."""
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    levels = tuple(load_machine(machine).contention)
    rows = [
        row
        for network in networks.split(",")
        for seed in range(seeds)
        for row in study(network, seed, machine, out, candidates, times, settings or ())
    ]
    write_rows(out / "levels.csv", rows)
    show(medians(rows, levels), levels, times)


if __name__ == "__main__":
    typer.run(main)
