"""How near tuned programs are to the bound that no schedule is below, per network and level, and which of its terms that is.

The headline is champion over bound (docs/bounds.md): 1 is proved to be the fastest.  Beside it the speed-up over the best tuned
single-operator baseline, the three terms of the bound over the roofline, DDR bytes over those that every program moves, and the bytes
of the instruction stream, which are no part of them.

    python scripts/study_gain.py --out gain
    python scripts/study_gain.py --networks "squeezenet,light:squeezenet,quantised=qdq" --out types
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.bound.bound import TERMS, Bound
from scripts.studies import Arm, Pair, Row, Study, Table, champions, command, means, medians
from scripts.traffic import stream_bytes
from tuner.measure.roofline import Roofline

OF_TERMS = tuple(f"{term}_over_roofline" for term in TERMS)
SHOWN = ("over_bound", "over_roofline", "gain", *OF_TERMS, "ddr_over_bound")


def rows(pair: Pair) -> Iterator[Row]:
    (result,) = pair.found.values()
    timed = champions(pair.target_graph, result)
    bound, roofline = Bound(pair.target_graph), Roofline(pair.target_graph)
    for level in pair.levels:
        moved = timed[level].timings[level].ddr_read_bytes + timed[level].timings[level].ddr_write_bytes
        terms, roof, cycles = bound.of(level), roofline.cycles(0, len(pair.target_graph.operators), level), result.cycles[level]
        yield {
            "level": level, "cycles": cycles, "baseline_cycles": result.baseline_cycles[level], "bound_cycles": terms.cycles,
            "roofline_cycles": roof, "term": terms.term, "over_bound": cycles / terms.cycles, "over_roofline": cycles / roof,
            "gain": result.baseline_cycles[level] / cycles,
            **{f"{term}_over_roofline": value / roof for term, value in terms.by_term.items()},
            "ddr_over_bound": moved / terms.traffic_bytes, "candidates": pair.candidates,
            "stream_bytes": stream_bytes(timed[level].program),
        }  # fmt: skip


def show(found: Sequence[Row]) -> Iterator[Table | str]:
    table = medians(found, "network", "machine", "level")
    mean = {
        level: {"network": "geometric mean", "level": level, "term": "", "cycles": "", "bound_cycles": "", "stream_bytes": "", **row}
        for level, row in means(table, [key for key in SHOWN if key not in OF_TERMS]).items()  # a term may be 0
    }
    yield Table(
        (
            "<network",
            "<level",
            "champion",
            "bound",
            "<by",
            "over bound",
            "over roofline",
            "speed-up",
            *TERMS,
            "DDR",
            "stream",
        ),
        [
            (
                row["network"],
                row["level"],
                row["cycles"],
                row["bound_cycles"],
                row["term"],
                *(f"{row[key]:.3f}" if key in row else "" for key in SHOWN),
                row["stream_bytes"],
            )
            for row in (*table, *mean.values())
        ],
    )
    yield "\nChampion over bound: " + ", ".join(f"{row['over_bound']:.3f} at {level}" for level, row in mean.items())


STUDY = Study("gain", {"default": Arm()}, rows, show)

if __name__ == "__main__":
    command(STUDY, "Tuned programs over the bound that no schedule is below.")
