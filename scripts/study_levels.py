"""Is a variant per level worth it, and is each level's champion as good as a search for that level alone?

For every network and seed: one search for all levels; the champion of every level timed at every level (the matrix variant x level).  Then,
for each level, a search that knows only it, with three times the budget: how much better it is than the champion.

    python scripts/study_levels.py --out levels

Goals: half of the networks gain 2 % or more at the heaviest level over the variant made for the lightest; every champion is within 2 % of
the search for its level alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import Arm, Pair, Row, Study, Table, command, goal, medians

GAIN, NEAR, TIMES = 0.02, 0.02, 3
LEVELS = ("none", "slight", "severe")
NETWORKS = "squeezenet,shufflenet,inception_v1,resnet50,made:mobilenet_v2"


def rows(pair: Pair) -> Iterator[Row]:
    together = pair.found["all"]
    for at, (level, cycles) in enumerate(together.cycles.items()):
        alone = pair.found[level].cycles[level]
        over = {f"variant_{name}": int(each.cycles[at]) for name, each in zip(LEVELS, together.best, strict=True)}
        ratios = {f"over_{name}": value / cycles - 1 for name, value in zip(LEVELS, over.values(), strict=True)}
        yield {"level": level, "cycles": cycles, **over, **ratios, "alone_cycles": alone, "over_alone": cycles / alone - 1}


def show(found: Sequence[Row]) -> Iterator[Table | str]:
    table, (lightest, *_, heaviest) = medians(found, "network", "machine", "level"), LEVELS
    yield Table(
        ["<network", "<at level", "champion", *(f"variant {name}" for name in LEVELS), f"champion over alone x{TIMES}"],
        [
            (row["network"], row["level"], row["cycles"], *(f"{row[f'over_{name}']:+.2%}" for name in LEVELS), f"{row['over_alone']:+.2%}")
            for row in table
        ],
    )
    gains = [row[f"over_{lightest}"] for row in table if row["level"] == heaviest]
    enough, near = sum(gain >= GAIN for gain in gains), sum(row["over_alone"] <= NEAR for row in table)
    worst = max(table, key=lambda row: float(row["over_alone"]))
    yield (
        f"\n{enough} of {len(gains)} networks gain {GAIN:.0%} or more at {heaviest} over the variant made for {lightest} "
        f"(goal: half): {goal(2 * enough >= len(gains))}"
    )
    yield (
        f"{near} of {len(table)} champions are within {NEAR:.0%} of a search for their level alone with {TIMES} times the budget "
        f"(goal: all): {goal(near == len(table))}; worst {worst['over_alone']:+.2%}, {worst['network']} at {worst['level']}"
    )


STUDY = Study(
    "levels", {"all": Arm(levels=LEVELS), **{level: Arm(times=TIMES, levels=(level,)) for level in LEVELS}}, rows, show, NETWORKS, seeds=1
)  # fmt: skip

if __name__ == "__main__":
    command(STUDY, "The variant of every level at every level, and each champion against a search for its level alone.")
