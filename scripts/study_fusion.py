"""What each way of keeping data on chip adds, per network and contention level, and how far from the ceiling that ends.

Searches of equal budgets in which more and more is allowed: whole tensors stay on chip or none (residency); segments run in blocks of
rows (row fusion); rows that two blocks share are kept (halo cache); a block's loads run ahead of it (prefetch); blocks overlap in a
window, which is all that the search has.  Figures are speed-ups over the best tuned single-operator baseline of these searches at that
level, medians over the seeds; the ceiling is that program over the roofline.
Beside them the bytes of the instruction stream of the first stage's champion and of the last one's. Each search is its own: where more
freedom found less in the same budget, the table says so. The last lines are the table of the README, in Markdown.

    python scripts/study_fusion.py --out fusion
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import Arm, Pair, Row, Study, Table, champions, command, groups, means, medians
from scripts.traffic import stream_bytes
from tuner.measure.roofline import Roofline

SWITCHES = {"row fusion": "block_fusion", "halo cache": "halo_cache", "prefetch": "prefetch", "window": "window"}  # in the order of stages
STAGES = ("residency", *SWITCHES)
SHOWN = (*STAGES, "ceiling", "best_over_roofline")
STREAMS = (f"{STAGES[0]}_stream", f"{STAGES[-1]}_stream")


def arm(stage: str) -> Arm:
    """A stage has its own switch on and those before it; the later ones are off."""
    return Arm(tuple(f"use.{switch}=false" for name, switch in SWITCHES.items() if STAGES.index(name) > STAGES.index(stage)))


def rows(pair: Pair) -> Iterator[Row]:
    timed = {stage: champions(result.target_graph, result) for stage, result in pair.found.items()}
    for level in pair.levels:
        base = min(result.baseline_cycles[level] for result in pair.found.values())
        cycles = {stage: result.cycles[level] for stage, result in pair.found.items()}
        roofline = Roofline(pair.target_graph).cycles(0, len(pair.target_graph.operators), level)
        yield {
            "level": level, "baseline_cycles": base, **{f"{stage}_cycles": value for stage, value in cycles.items()},
            **{stage: base / value for stage, value in cycles.items()},
            "ceiling": base / roofline, "best_over_roofline": min(cycles.values()) / roofline, "candidates": pair.candidates,
            **{f"{stage}_stream": stream_bytes(mine[level].program) for stage, mine in timed.items()},
        }  # fmt: skip


def show(found: Sequence[Row]) -> Iterator[Table | str]:
    table = medians(found, "network", "machine", "level")
    mean = {
        level: {"network": "geometric mean", "level": level, "baseline_cycles": "", **dict.fromkeys(STREAMS, ""), **row}
        for level, row in means(table, SHOWN).items()
    }
    yield Table(
        (
            "<network",
            "<level",
            "baseline",
            "residency",
            *(f"+ {stage}" for stage in SWITCHES),
            "ceiling",
            "over roofline",
            "stream, residency",
            f"+ {STAGES[-1]}",
        ),
        [
            (row["network"], row["level"], row["baseline_cycles"], *(f"{row[key]:.3f}" for key in SHOWN), *(row[key] for key in STREAMS))
            for row in (*table, *mean.values())
        ],
    )
    levels, last = list(mean), STAGES[-1]
    yield "\n| network | " + " | ".join(f"{level}: gain (ceiling)" for level in levels) + f" | whole tensors only, {levels[-1]} |"
    yield "|---" * (len(levels) + 2) + "|"
    for (name,), mine in groups((*table, *mean.values()), "network").items():
        bold = "**" if name == "geometric mean" else ""
        cells = [f"{bold}{row[last]:.2f}{bold} ({row['ceiling']:.2f})" for row in mine]
        yield f"| {bold}{name}{bold} | " + " | ".join(cells) + f" | {bold}{mine[-1][STAGES[0]]:.2f}{bold} |"


STUDY = Study("fusion", {stage: arm(stage) for stage in STAGES}, rows, show)

if __name__ == "__main__":
    command(STUDY, "Speed-up over single operators as more ways of keeping data on chip are allowed.")
