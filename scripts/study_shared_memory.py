"""A memory on the chip that cores share: what it brings beside the same machine without it.

Two searches of the same number of measured programs, for every network, machine and seed:

  without  the machine with `shared=null`: what crosses a segment's border goes through DDR;
  with     tensors and weights lie in the shared memory as far as they fit.

Figures of a level are those of its own program: cycles, and bytes of DDR and of the instruction stream. The baseline of each arm is layer
by layer, on its own machine.

    python scripts/study_shared_memory.py --out shared_memory
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import Arm, Pair, Row, Study, Table, champions, command, geometric, medians
from scripts.traffic import stream_bytes

MEGA = 1e6


def rows(pair: Pair) -> Iterator[Row]:
    timed = {arm: champions(found.target_graph, found) for arm, found in pair.found.items()}
    for level in pair.levels:
        row: Row = {"level": level, "candidates": pair.candidates}
        for arm, found in pair.found.items():
            mine = timed[arm][level]
            timing = mine.timings[level]
            row |= {
                f"{arm}_cycles": timing.cycles, f"{arm}_bytes": timing.ddr_read_bytes + timing.ddr_write_bytes,
                f"{arm}_stream": stream_bytes(mine.program), f"{arm}_baseline": found.baseline_cycles[level],
            }  # fmt: skip
        yield row | {"faster": row["without_cycles"] / row["with_cycles"], "of_bytes": row["with_bytes"] / row["without_bytes"]}


def show(found: Sequence[Row]) -> Iterator[Table | str]:
    """Medians over seeds, and the geometric mean of the networks at every level."""
    table = medians(found, "network", "machine", "level")
    yield Table(
        ("<network", "<machine", "<level", "cycles without", "with", "faster", "DDR MB without", "with", "stream MB without", "with",
            "baseline / tuned, with"),
        [
            (
                row["network"], row["machine"], row["level"], row["without_cycles"], row["with_cycles"], f"{row['faster']:.2f}",
                f"{row['without_bytes'] / MEGA:.2f}", f"{row['with_bytes'] / MEGA:.2f}",
                f"{row['without_stream'] / MEGA:.2f}", f"{row['with_stream'] / MEGA:.2f}",
                f"{row['with_baseline'] / row['with_cycles']:.2f}",
            )
            for row in table
        ],
    )  # fmt: skip
    for level in dict.fromkeys(row["level"] for row in table):
        mine = [row for row in table if row["level"] == level]
        means = [geometric(np.array([row[key] for row in mine])) for key in ("faster", "of_bytes")]
        yield f"{level}: {means[0]:.2f} times as fast with {means[1]:.0%} of the bytes, geometric mean of {len(mine)}"


STUDY = Study(
    "shared_memory",
    {"without": Arm(machine="shared=null"), "with": Arm()},
    rows,
    show,
    "squeezenet,shufflenet,resnet50,made:mobilenet_v2",
    ("ascend310-l2",),
    64,
    1,
)

if __name__ == "__main__":
    command(STUDY, "A memory that cores share, and the same machine without it.")
