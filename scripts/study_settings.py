"""What does each learned or clever part of the search bring?  The default settings against others, at equal numbers of measured programs.

Without more: every switch of the search the other way round, one at a time (an ablation).  With --config FILE (the best.yaml of a study,
say): that file against the default.  With --settings "a.b=c d.e=f", as often as wanted: each of them; `budget.candidates=N` among them is
the number of programs of that one, for comparisons at equal time.  Per network and seed: champions' cycles with the other settings over
those with the default, the geometric mean over the levels; over all pairs of network and seed its geometric mean with the 95% interval of
a bootstrap over the pairs.  Above 1 the default is better; an interval that holds 1 says nothing.  CPU: processor seconds of the
searches, all pairs. With --clock all programs are timed on another machine than the one they are compiled for: a board that is not as it
was described.

    python scripts/study_settings.py --out settings --processes 2
    python scripts/study_settings.py --out settings --config STUDY/best.yaml --networks inception_v1,resnet50
    python scripts/study_settings.py --out settings --settings "segments.measured=48 budget.candidates=96"
    python scripts/study_settings.py --out settings --only "a cost model" --clock edge:matrix.startup_cycles=64,ddr.latency_cycles=600
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
import yaml
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.space.order import ordered
from compiler.unit.unit import Unit
from scripts.studies import interval, named, network, searched, short, write_rows
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine, load_machine
from tuner.commands.text import print_table
from tuner.config import leaves, load_config
from tuner.evaluate import Evaluator, EvaluatorSpec

DEFAULT, CANDIDATES = "default", "budget.candidates="
SWITCHED = {
    "no covers": ("use.covers=false",),
    "a cost model": ("use.cost_model=true",),
    "a cost model without climbing": ("use.cost_model=true", "search.climb=0"),
    "crossover": ("search.crossover_rate=0.3",),
    "no islands": ("use.islands=false", "search.generation=8"),  # as many programs, and so segments for each, in an epoch
    "the file's order": ("search.order=file",),
    "least memory alive": ("search.order=narrow",),
    "siblings as one": ("use.siblings=true",),
    "no sliding windows": ("use.window=false",),
    "no halo cache": ("use.halo_cache=false",),
    "no prefetch": ("use.prefetch=false",),
    "whole tensors only": ("use.block_fusion=false",),
}


class Cell(NamedTuple):
    """One search.  settings: `a.b=c` texts over the default."""

    network: str
    seed: int
    name: str
    settings: tuple[str, ...]


class Found(NamedTuple):
    """cycles: level -> those of the best program."""

    cycles: dict[str, int]
    programs: int
    cpu_s: float


def champions(cell: Cell, machine: str, candidates: int, clock: str | None) -> Found:
    """What a search finds, in how much time; clock: of this machine."""
    unit = network(cell.network, machine)
    budget = (
        load_config(None, cell.settings).budget.candidates if any(text.startswith(CANDIDATES) for text in cell.settings) else candidates
    )
    assert budget is not None
    begun = time.process_time()
    evaluator = (
        None if clock is None else partial(timed_on, load_machine(clock), ordered(unit, load_config(None, cell.settings).search.order))
    )
    best = searched(unit, cell.settings, cell.seed, budget, evaluator).champions.best
    cycles = {
        level: int(each.cycles[i]) for i, (level, each) in enumerate(zip(unit.machine.contention, best, strict=True)) if each is not None
    }
    return Found(cycles, budget, time.process_time() - begun)


def timed_on(clock: Machine, unit: Unit) -> Evaluator:
    """Answers with the time of another machine."""
    made = EvaluatorSpec(unit, tuple(unit.machine.contention))()
    made.clock = clock
    return made


def warm(cell: Cell, machine: str) -> None:
    """Load or compile kernels, so that it is no time of a search."""
    searched(network(cell.network, machine), cell.settings, cell.seed, candidates=4)


def differences(file: str) -> tuple[str, ...]:
    """What a configuration changes of the default, as `a.b=c` texts; not the budget, the farm or the study."""
    default, other = (dict(leaves(config.model_dump(mode="json"))) for config in (load_config(), load_config(file)))
    changed = {path: value for path, value in other.items() if value != default.get(path)}
    found = tuple(
        f"{path}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}"
        for path, value in changed.items()
        if path.partition(".")[0] not in ("budget", "farm", "study")
    )
    if not found:
        raise BadInputError(f"--config {file}: changes nothing of the default that could change a result")
    return found


def ratios(rows: Sequence[dict[str, Any]], name: str) -> NDArray[np.float64]:
    """Of one variant: a ratio per pair of network and seed, over the levels."""
    logs: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["settings"] == name:
            logs.setdefault((row["network"], row["seed"]), []).append(float(np.log(row["over_default"])))
    return np.exp([np.mean(values) for values in logs.values()])


def cpu_s(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Of all searches of one variant."""
    return sum({(row["network"], row["seed"]): row["cpu_s"] for row in rows if row["settings"] == name}.values())


def mean(values: NDArray[np.float64]) -> float:
    return float(np.exp(np.log(values).mean()))


def verdict(low: float, high: float) -> str:
    return "helps" if low > 1 else "harms" if high < 1 else "no difference shown"


def main(
    out: Annotated[Path, typer.Option(help="folder for settings.csv and summary.csv")],
    networks: Annotated[str, typer.Option(help="comma-separated")] = "squeezenet,inception_v1,shufflenet,made:mobilenet_v2",
    machine: Annotated[str, typer.Option()] = "edge",
    seeds: Annotated[int, typer.Option(help="seeds 0..")] = 3,
    candidates: Annotated[int, typer.Option(help="measured programs of each search")] = 64,
    config: Annotated[str | None, typer.Option(help="a configuration to compare instead of the switches")] = None,
    settings: Annotated[
        list[str] | None, typer.Option(help="`a.b=c d.e=f`: settings to compare instead of the switches; repeatable")
    ] = None,
    only: Annotated[str | None, typer.Option(help=f"comma-separated, of: {', '.join(SWITCHED)}")] = None,
    clock: Annotated[str | None, typer.Option(help="machine that programs are timed on, where it is not the one described")] = None,
    processes: Annotated[int, typer.Option(min=1, help="searches at once; changes no figure")] = 1,
) -> None:
    """The default settings against others, network by network and seed by seed."""
    if config is not None:
        variants = {Path(config).stem: differences(config)}
    elif settings:
        variants = {text: tuple(text.split()) for text in settings}
    else:
        variants = {name: SWITCHED[name] for name in (only.split(",") if only else SWITCHED)}
    every = {DEFAULT: (), **variants}
    cells = [Cell(name, seed, *item) for name in named(networks) for seed in range(seeds) for item in every.items()]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(processes, get_context("spawn"), warm, (cells[0], machine)) as pool:
        base: Found | None = None
        for cell, found in zip(cells, pool.map(champions, cells, repeat(machine), repeat(candidates), repeat(clock)), strict=True):
            base = found if base is None or cell.name == DEFAULT else base
            place = {
                "network": short(cell.network),
                "seed": cell.seed,
                "settings": cell.name,
                "programs": found.programs,
                "cpu_s": round(found.cpu_s, 2),
            }
            rows += [
                {**place, "level": level, "cycles": cycles, "over_default": cycles / base.cycles[level]}
                for level, cycles in found.cycles.items()
            ]
            print(
                f"{place['network']} seed {cell.seed} {cell.name}: "
                + ", ".join(f"{k} {v:,}" for k, v in found.cycles.items())
                + f"; {found.programs} programs, {found.cpu_s:.1f} s",
                file=sys.stderr,
            )
    summary = []
    for name, settings in variants.items():
        pairs = ratios(rows, name)
        low, high = interval(pairs, mean)
        summary.append(
            {"settings": name, "values": " ".join(settings), "pairs": len(pairs), "over_default": mean(pairs), "low": low, "high": high,
             "worst_for_default": float(pairs.min()), "best_for_default": float(pairs.max()),
             "cpu_over_default": cpu_s(rows, name) / cpu_s(rows, DEFAULT)}
        )  # fmt: skip
    print(f"{machine}, {candidates} measured programs: cycles over those of the default settings, geometric mean over levels and pairs")
    columns = ("<settings", "pairs", "over default", "95% interval", "least", "most", "CPU", "<what the default has")
    print_table(
        columns,
        [
            (row["settings"], row["pairs"], f"{row['over_default']:.4f}", f"{row['low']:.4f} .. {row['high']:.4f}",
             f"{row['worst_for_default']:.4f}", f"{row['best_for_default']:.4f}", f"{row['cpu_over_default']:.2f}",
             verdict(row["low"], row["high"]))
            for row in summary
        ],
    )  # fmt: skip
    write_rows(out / "settings.csv", rows)
    write_rows(out / "summary.csv", summary)


if __name__ == "__main__":
    typer.run(main)
