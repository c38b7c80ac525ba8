"""What each way of keeping data on chip adds, per network and contention level, and how far from the ceiling that ends.

Searches of equal budgets in which more and more is allowed: whole tensors stay on chip or none (residency); segments run in blocks of
rows (row fusion); rows that two blocks share are kept (halo cache); a block's loads run ahead of it (prefetch); blocks overlap in a
window, which is all that the search has.  Figures are speed-ups over the best tuned single-operator baseline of these searches at that
level, medians over the seeds; the ceiling is that program over the roofline.  Each search is its own: where more freedom found less in
the same budget, the table says so.

    python scripts/study_fusion.py --out fusion
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import baseline_cycles, medians, named, network, searched, short, write_rows
from tuner.cli.text import print_table
from tuner.evaluate import Roofline
from tuner.networks.zoo import shipped

_SWITCHES = {"row fusion": "block_fusion", "halo cache": "halo_cache", "prefetch": "prefetch", "window": "window"}  # in the order of stages
STAGES = ("residency", *_SWITCHES)


def overrides(stage: str) -> tuple[str, ...]:
    """A stage has its own switch on and those before it; the later ones are off."""
    return tuple(f"use.{switch}=false" for name, switch in _SWITCHES.items() if STAGES.index(name) > STAGES.index(stage))


def study(name: str, machine: str, candidates: int, seed: int) -> Iterator[dict[str, Any]]:
    unit = network(name, machine)
    found = {stage: searched(unit, overrides(stage), seed, candidates).champions for stage in STAGES}
    baselines = [baseline_cycles(unit, champions) for champions in found.values()]
    for at, level in enumerate(unit.machine.contention):
        base = min(cycles[level] for cycles in baselines)
        cycles = {stage: int(best.cycles[at]) for stage, champions in found.items() if (best := champions.best[at]) is not None}
        roofline = Roofline(unit).cycles(0, len(unit.kernels), level)
        best = min(cycles.values())
        yield {
            "network": short(name),
            "level": level,
            "baseline_cycles": base,
            **{stage.replace(" ", "_") + "_cycles": value for stage, value in cycles.items()},
            **{stage.replace(" ", "_"): base / value for stage, value in cycles.items()},
            "ceiling": base / roofline,
            "best_over_roofline": best / roofline,
            "candidates": candidates,
        }


def show(rows: list[dict[str, Any]]) -> None:
    keys = [stage.replace(" ", "_") for stage in STAGES]
    columns = ("<network", "<level", "baseline", "residency", *(f"+ {stage}" for stage in STAGES[1:]), "ceiling", "over roofline")
    table = [
        (row["network"], row["level"], row["baseline_cycles"], *(f"{row[key]:.3f}" for key in (*keys, "ceiling", "best_over_roofline")))
        for row in rows
    ]
    for level in dict.fromkeys(row["level"] for row in rows):
        mine = [row for row in rows if row["level"] == level]
        means = (f"{geometric_mean(row[key] for row in mine):.3f}" for key in (*keys, "ceiling", "best_over_roofline"))
        table.append(("geometric mean", level, "", *means))
    print_table(columns, table)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as the README shows it: per level what the whole search gains, and the ceiling; whole tensors alone at the last level."""
    levels = list(dict.fromkeys(row["level"] for row in rows))
    last = STAGES[-1].replace(" ", "_")
    lines = ["| network | " + " | ".join(f"{level}: gain (ceiling)" for level in levels) + f" | whole tensors only, {levels[-1]} |"]
    lines.append("|---" * (len(levels) + 2) + "|")
    for name in dict.fromkeys(row["network"] for row in rows):
        mine = {row["level"]: row for row in rows if row["network"] == name}
        cells = [f"{float(mine[level][last]):.2f} ({float(mine[level]['ceiling']):.2f})" for level in levels]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {float(mine[levels[-1]][STAGES[0]]):.2f} |")

    def mean(key: str, level: str) -> str:
        return f"{geometric_mean(float(row[key]) for row in rows if row['level'] == level):.2f}"

    means = " | ".join(f"**{mean(last, level)}** ({mean('ceiling', level)})" for level in levels)
    lines.append(f"| **geometric mean** | {means} | **{mean(STAGES[0], levels[-1])}** |")
    return "\n".join(lines) + "\n"


def main(
    out: Annotated[Path, typer.Option(help="folder for fusion.csv, and fusion.md with the README's table")],
    networks: Annotated[str, typer.Option(help="comma-separated networks")] = ",".join(map(short, shipped())),
    machine: Annotated[str, typer.Option()] = "edge",
    candidates: Annotated[int, typer.Option(help="measured programs of each search, five searches per network")] = 64,
    seeds: Annotated[int, typer.Option(min=1, help="seeds 0..; medians are reported")] = 3,
) -> None:
    """Speed-up over single operators as more ways of keeping data on chip are allowed."""
    rows = []
    for name in named(networks):
        rows += medians([list(study(name, machine, candidates, seed)) for seed in range(seeds)])
        write_rows(out / "fusion.csv", rows)  # network by network: what is done survives what stops the rest
        print(f"{short(name)} done", file=sys.stderr, flush=True)
    (out / "fusion.md").write_text(markdown(rows))
    show(rows)


if __name__ == "__main__":
    typer.run(main)
