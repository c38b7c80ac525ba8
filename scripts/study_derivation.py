"""What deriving a graph brings over its operators run one by one, and whether evolution finds it.

First table, per network and level: the best program derived by the search against the best one of single fused operators (each tuned),
both of one run, the latter in the search's or the file's order, whichever is faster; medians over the seeds.  Second table: chains whose
genome is restricted to cuts and block counts, so that the best sum of segments can be computed.  `exact` measures every run of operators
in every block count, takes the shortest path and measures that program whole; `fused` is the best program of single operators;
`evolution` is the search without covers (`use.covers=false`), which knows no shortest paths; the median over seeds.  Reached: within 1%
of exact, and 90% of the gain from fused to exact.

    python scripts/study_derivation.py --out derivation
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.frontend.zoo import shipped
from compiler.space.gene import MAX_SEGMENT, Gene, Genome, block_counts
from compiler.space.structures import Structures
from compiler.unit.unit import Unit
from scripts.studies import baseline_cycles, medians, named, network, searched, short, write_rows
from tuner.commands.text import print_table
from tuner.evaluate import Ask, Evaluator
from tuner.search.question import cycles_of
from tuner.search.table import SegmentTable

NEAR, SHARE = 1.01, 0.9  # the goals
CUTS = (
    "search.moves=[split_segment,merge_segments,shift_border,change_blocks]",
    "use.halo_cache=false",
    "use.cores=false",
    "use.window=false",
)
# without covers every program is a child: more thought for each
EVOLUTION = ("use.covers=false", "use.cost_model=true", "model.proposals=8")
Cycles = NDArray[np.int64]


def derived(name: str, machine: str, candidates: int, seed: int) -> Iterator[dict[str, Any]]:
    """Best derived against single operators, per level."""
    unit = network(name, machine)
    champions = searched(unit, (), seed, candidates).champions
    fused = baseline_cycles(unit, champions)
    for at, level in enumerate(unit.machine.contention):
        best = champions.best[at]
        assert best is not None
        segments = [gene for gene in best.genome if gene.stop - gene.start > 1]
        yield {
            "network": short(name),
            "level": level,
            "fused_cycles": fused[level],
            "derived_cycles": int(best.cycles[at]),
            "gain": float(fused[level] / best.cycles[at]),
            "operators": len(unit.kernels),
            "segments": len(best.genome),
            "in_blocks": sum(gene.blocks > 1 for gene in segments),
            "cached": sum(gene.blocks > 1 and gene.cached != 0 for gene in segments),
        }


def allowed(unit: Unit) -> Iterator[Gene]:
    """Every gene of the restricted genome, cheap ones first."""
    count = len(unit.kernels)
    for length in range(1, min(count, MAX_SEGMENT) + 1):
        for start in range(count - length + 1):
            for blocks in block_counts(unit, start, start + length):
                yield Gene(start, start + length, blocks)


def exact(unit: Unit, evaluator: Evaluator) -> tuple[Cycles, Cycles, int]:
    """Cycles per level of (the cheapest cover by single operators, the cheapest cover), each measured whole; and how many segments fit."""
    levels = list(unit.machine.contention)
    table = SegmentTable(Structures(unit), len(levels))
    for gene in allowed(unit):
        if not table.known(gene):
            table.add(gene, cycles_of(evaluator.answer(Ask("segment", (gene,)))))
    known = sum(cycles is not None for cycles in table.cycles.values())

    def whole(genome: Genome, level: int) -> int:
        cycles = cycles_of(evaluator.answer(Ask("program", genome)))
        assert cycles is not None
        return int(cycles[level])

    found = []
    for longest in (1, MAX_SEGMENT):
        covers = [table.cover(level, longest=longest) for level in range(len(levels))]
        found.append(np.array([whole(cover[0], level) for level, cover in enumerate(covers) if cover is not None], np.int64))
    return found[0], found[1], known


def chain(name: str, machine: str, candidates: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Evolution against the exact cover, per level."""
    unit = network(name, machine)
    levels = list(unit.machine.contention)
    fused, best, known = exact(unit, Evaluator(unit, tuple(levels)))
    runs = np.stack([_best_cycles(unit, candidates, seed) for seed in range(seeds)])
    for at, level in enumerate(levels):
        over = [float(cycles / best[at]) for cycles in runs[:, at]]
        gains = [float((fused[at] - cycles) / (fused[at] - best[at])) for cycles in runs[:, at]]
        yield {
            "network": short(name),
            "level": level,
            "operators": len(unit.kernels),
            "segments_measured": known,
            "fused_cycles": int(fused[at]),
            "exact_cycles": int(best[at]),
            "evolution_cycles": int(median(runs[:, at].tolist())),
            "over_exact": median(over),
            "worst_over_exact": max(over),
            "share_of_gain": median(gains),
            "seeds": seeds,
            "candidates": candidates,
            "reached": median(over) <= NEAR and median(gains) >= SHARE,
        }


def _best_cycles(unit: Unit, candidates: int, seed: int) -> Cycles:
    champions = searched(unit, (*CUTS, *EVOLUTION), seed, candidates).champions
    return np.array([member.cycles[at] for at, member in enumerate(champions.best) if member is not None], np.int64)


def show_derived(rows: list[dict[str, Any]]) -> None:
    columns = ("<network", "<level", "single operators", "derived", "gain", "operators", "segments", "in blocks", "halo cached")
    keys = ("network", "level", "fused_cycles", "derived_cycles", "gain", "operators", "segments", "in_blocks", "cached")
    print_table(columns, [[f"{row[key]:.3f}" if key == "gain" else row[key] for key in keys] for row in rows])
    for level in dict.fromkeys(row["level"] for row in rows):
        print(f"geometric mean, {level}: {geometric_mean(row['gain'] for row in rows if row['level'] == level):.3f}")


def show_chains(rows: list[dict[str, Any]]) -> None:
    columns = ("<chain", "<level", "fused", "exact", "evolution", "over exact", "worst seed", "of the gain", "<goal")
    print_table(
        columns,
        [
            (
                *(row[key] for key in ("network", "level", "fused_cycles", "exact_cycles", "evolution_cycles")),
                f"{row['over_exact'] - 1:+.2%}",
                f"{row['worst_over_exact'] - 1:+.2%}",
                f"{row['share_of_gain']:.1%}",
                "reached" if row["reached"] else "missed",
            )
            for row in rows
        ],
    )


def main(
    out: Annotated[Path, typer.Option(help="folder for derived.csv and chains.csv")],
    networks: Annotated[str, typer.Option(help="comma-separated networks of the first table")] = ",".join(map(short, shipped())),
    chains: Annotated[str, typer.Option(help="comma-separated chains of the second table")] = "vgg19,made:mobilenet_v1",
    machine: Annotated[str, typer.Option()] = "edge",
    candidates: Annotated[int, typer.Option(help="measured programs of each search of the first table")] = 96,
    chain_candidates: Annotated[int, typer.Option(help="measured programs of each search on a chain")] = 256,
    seeds: Annotated[int, typer.Option(min=1, help="searches of each kind, seeds 0..; medians are reported")] = 3,
) -> None:
    """Best derived programs against single operators, and evolution against the exact cover of chains."""
    of_chains, rows = named(chains), []
    for name in named(networks):
        rows += medians([list(derived(name, machine, candidates, seed)) for seed in range(seeds)])
        print(f"{short(name)} done", file=sys.stderr, flush=True)
    if rows:
        write_rows(out / "derived.csv", rows)
        show_derived(rows)
    rows = [row for name in of_chains for row in chain(name, machine, chain_candidates, seeds)]
    if rows:
        write_rows(out / "chains.csv", rows)
        show_chains(rows)


if __name__ == "__main__":
    typer.run(main)
