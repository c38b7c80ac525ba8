"""What does a larger budget buy?  Long searches against independent restarts at equal CPU, random changes, and plans by prediction.

| arm | is |
|---|---|
| compile | the plans of `tilefarm compile`, which every other arm begins with |
| search | `tuner.Search` with the default configuration; its curve is read at every budget, as a search knows nothing of its own |
| random | random changes of the best program so far, the levels in turn, for as many CPU seconds as the search took |
| restarts | searches of few programs and other seeds, the best of as many as the CPU seconds of the search allow |

Restarts are drawn from a pool: short searches, and the beginnings of the other seeds' long ones.  The best of k of them is the mean over
all draws of k without replacement, which needs no sampling.  Where k is more than the pool has, it is the best of the pool: less than k
restarts would find, so the search is flattered; the table has k and the pool.

Simulations are programs, segments and stages that were measured, programs that a search foresees before it measures one, and those of
`compile`.  All figures are of log(cycles / bound) of the case's levels, whose mean over levels counts.  Gains are paired by seed, and their
95% intervals are Student's t: over seeds in a case, over cases in the mean.

A case whose programs are measured on a board that is not as it was described has a hidden machine as its clock (`study_board.py`).

`--optimum`: on graphs of few operators every way to cut them into segments is simulated, with the fastest settings of each segment alone
(blocks, halos, weights).  It says where the cuts of the search's champions are among all.  A search has more than that to choose from, so
its program may be faster.

Every search is a line of OUT/searches.jsonl as soon as it has ended, and is not done again; a larger budget needs a new one.  CPU seconds
are those of processes of their own; with `--processes 1` later searches find caches that earlier ones filled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.stats import t as student  # type: ignore[import-untyped]

from scripts.budget_searches import CASES, Searches, Task
from scripts.studies import Json, Out, Row, Set, Table, finish, groups, network, write_rows
from simulator.npu.files import atomic_write
from tuner.report.html import Figures, html_document, html_section, html_tabs
from tuner.report.style import color, figure, log_axis

SATURATED = 0.05  # gain over compile
SHORT_SEED = 1000  # of the first short search
FEW_OPERATORS = 10  # 2 ** 9 cuts
ARMS = ("search", "random", "compile")
DASHES = ("solid", "dash", "dot", "dashdot")
Found = Mapping[tuple[str, int], Row]
"""Arm and seed -> record."""


def read_curve(record: Row, limit: float, column: int = 0) -> list[float]:
    """Last point whose programs (column 0) or CPU seconds (1) are within the limit; the first one at least."""
    return [point for point in record["points"] if point[column] <= limit or point is record["points"][0]][-1]


def expect_best(values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """[levels]: mean of the least of k rows of [rows, levels], over all draws without replacement."""
    count, k = len(values), min(k, len(values))
    shares = [math.comb(count - 1 - rank, k - 1) / math.comb(count, k) for rank in range(count)]
    return np.array(shares) @ np.sort(values, axis=0)


def readings(name: str, found: Found, budgets: Sequence[int], restarts: Sequence[int], seeds: int) -> Iterator[Row]:
    """A row per budget, seed and level.  found: arm and seed -> record."""
    start = found["compile", 0]
    bounds, searches = np.array(start["bounds"]), {seed: record for (arm, seed), record in found.items() if arm == "search"}

    def over_bound(point: Sequence[float]) -> NDArray[np.float64]:
        return np.log(np.array(point[3:]) / bounds)

    for budget, seed in itertools.product(budgets, range(seeds)):
        own = read_curve(searches[seed], budget)
        arms = {"search": over_bound(own), "compile": over_bound(start["points"][0])}
        arms["random"] = over_bound(read_curve(found["random", seed], own[1], 1))
        row: Row = {"case": name, "programs": budget, "seed": seed, "cpu_s": own[1], "simulations": int(own[2] + start["points"][0][2])}
        for length in [length for length in restarts if length < budget]:
            pool = [read_curve(one, length) for of, one in searches.items() if of != seed and one["programs"] >= length]
            if pool:
                k = max(1, int(own[1] / np.mean([point[1] for point in pool])))
                arms[f"restarts_{length}"] = expect_best(np.array([over_bound(point) for point in pool]), k)
                row |= {f"k_{length}": k, f"pool_{length}": len(pool)}
        for place, level in enumerate(start["levels"]):
            yield row | {"level": level, **{arm: float(values[place]) for arm, values in arms.items()}}


def gain_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of logarithms and its 95% interval, as gains; one value has no interval."""
    mean, count = float(np.mean(values)), len(values)
    half = student.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count) if count > 1 else math.nan
    return math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half)


def by_seed(rows: Sequence[Row], arm: str) -> list[float]:
    """Of every seed how much longer an arm's programs take than the search's: the mean logarithm over levels."""
    return [float(np.mean([row[arm] - row["search"] for row in levels])) for levels in groups(rows, "seed").values() if arm in levels[0]]


def cells_of(gain: tuple[float, float, float]) -> tuple[str, str]:
    return f"{gain[0]:+.2%}", "" if math.isnan(gain[1]) else f"{gain[1]:+.2%} .. {gain[2]:+.2%}"


def show(rows: Sequence[Row], restarts: Sequence[int]) -> Iterator[Table | str]:
    """A line per case and budget, the means over cases, and what they say."""
    arms = ["compile", "random", *(f"restarts_{length}" for length in restarts)]
    titles = ["compile", "random", *(f"restarts of {length}" for length in restarts)]
    lines, said = list[tuple[object, ...]](), list[str]()
    for (budget,), mine in groups(sorted(rows, key=lambda row: row["programs"]), "programs").items():
        logs: dict[str, list[float]] = {arm: [] for arm in arms}
        saturated = []
        for (name,), of_case in groups(mine, "case").items():
            values = {arm: by_seed(of_case, arm) for arm in arms}
            gains = {arm: gain_of(each) for arm, each in values.items() if each}
            for arm in gains:
                logs[arm].append(float(np.mean(values[arm])))
            over_compile, _, high = gains["compile"]
            if (over_compile if math.isnan(high) else high) < SATURATED:
                saturated.append(name)
            drawn = [f"{of_case[0][f'k_{m}']} of {of_case[0][f'pool_{m}']}" if f"k_{m}" in of_case[0] else "" for m in restarts]
            shown = [*(cell for arm in arms for cell in (cells_of(gains[arm]) if arm in gains else ("", ""))), *drawn]
            means = [float(np.mean([row[key] for row in of_case])) for key in ("cpu_s", "simulations", "search")]
            seeds = len(values["compile"])
            lines.append((name, budget, seeds, f"{means[0]:,.0f}", f"{means[1]:,.0f}", f"{math.exp(means[2]):.3f}", *shown))
        overall = [cell for arm in arms for cell in (cells_of(gain_of(logs[arm])) if logs[arm] else ("", ""))]
        lines.append((f"mean of {len(logs['compile'])}", budget, "", "", "", "", *overall, *("" for _ in restarts)))
        said.append(f"{budget:,} programs: search's part is below {SATURATED:.0%} (saturated): {', '.join(saturated) or 'nowhere'}")
        for arm, title in zip(arms[2:], titles[2:], strict=True):
            if logs[arm]:
                mean, low, high = gain_of(logs[arm])
                verdict = "search is better" if low > 0 else "restarts are better" if high < 0 else "no difference shown"
                said.append(f"{budget:,} programs: search over {title} at equal CPU: {mean:+.2%}, {len(logs[arm])} cases: {verdict}")
    columns = ("<case", "programs", "seeds", "CPU s", "simulations", "over bound")
    yield "gain of the search: how much longer the other arm's programs take, and 95% intervals"
    yield Table((*columns, *(cell for title in titles for cell in (f"over {title}", "<95%")), *(f"k of {m}" for m in restarts)), lines)
    yield from said


def show_cuts(name: str, found: Found, seeds: int) -> Iterator[Row]:
    """Of every level, what the search has beside the best of all cuts."""
    optimum = found["optimum", 0]
    for place, (level, cuts) in enumerate(optimum["cuts"].items()):
        best = min(cuts.values())
        for record in (found["search", seed] for seed in range(seeds)):
            own, cycles = cuts.get(record["cuts"][level]), record["points"][-1][3 + place]
            rank = None if own is None else sum(other < own for other in cuts.values()) + 1
            row: Row = {"case": name, "level": level, "seed": record["seed"], "cuts": len(cuts), "best_cut": best, "rank": rank}
            yield row | {"over_best_cut": None if own is None else own / best, "search_over_best_cut": cycles / best}


def draw(cases: Mapping[str, Found], rows: Sequence[Row]) -> str:
    """A page: of every case cycles over the bound against CPU seconds and simulations; colours are arms, dashes levels."""
    figures, tabs = Figures(), dict[str, str]()
    for name, found in cases.items():
        start, parts = found["compile", 0], []
        curves = [(arm, seed, np.array(one["points"])) for (arm, seed), one in found.items() if arm in ARMS[:2] and seed < SHORT_SEED]
        for column, title in ((1, "CPU seconds"), (2, "simulations")):
            drawn, ends = (
                figure(title, "cycles / bound"),
                [max(0.01, float(of(points[:, column]))) for _, _, points in curves for of in (min, max)],
            )
            for place, level in enumerate(start["levels"]):
                bound, dash = start["bounds"][place], DASHES[place % len(DASHES)]
                flat = np.array([[0, end, end, *start["points"][0][3:]] for end in (min(ends), max(ends))])
                for arm, seed, points in [*curves, (ARMS[2], 0, flat)]:
                    line = {"shape": "hv", "color": color(ARMS.index(arm)), "dash": dash}
                    drawn.add_scatter(
                        x=points[:, column],
                        y=points[:, 3 + place] / bound,
                        name=f"{arm}, {level}",
                        mode="lines",
                        line=line,
                        showlegend=not seed,
                    )
                mine = [row for row in rows if row["case"] == name and row["level"] == level]
                for arm in [key for key in mine[-1] if key.startswith("restarts_") and column == 1]:
                    x, y = zip(*[(row["cpu_s"], math.exp(row[arm])) for row in mine if arm in row], strict=True)
                    drawn.add_scatter(x=x, y=y, name=f"{arm.replace('_', ' of ')}, {level}", mode="markers", marker={"color": color(3)})
            drawn.update_xaxes(**log_axis(min(ends), max(ends)))
            parts.append(figures.place(drawn))
        tabs[name] = "".join(parts)
    lead = "Best program so far over the bound, a line per seed. Random changes have the CPU seconds of the search; so have restarts."
    return html_document("What a larger budget buys", f"{len(tabs)} cases", [html_section("curves", "Curves", lead, html_tabs(tabs))])


def numbers(text: str, option: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise typer.BadParameter(f"{text}: expected numbers of programs, as in 50,384", param_hint=option)
    return sorted({int(word) for word in words})


def main(
    out: Out,
    cases: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(CASES)}.")] = ",".join(CASES),
    budgets: Annotated[str, typer.Option(help="Measured programs; above 6,000 only of drawn networks.")] = "50,384,1500,6000,50000",
    seeds: Annotated[int, typer.Option(min=1, help="Long searches of each case: seeds 0..")] = 3,
    restarts: Annotated[str, typer.Option(help="Measured programs of a restart; '' for none.")] = "50,384",
    pool: Annotated[int, typer.Option(min=0, help="Short searches of each case, as long as the longest restart.")] = 16,
    optimum: Annotated[bool, typer.Option("--optimum", help=f"All cuts of graphs of {FEW_OPERATORS} operators or fewer, too.")] = False,
    overrides: Set = None,
    processes: Annotated[int, typer.Option(min=1, help="Searches at once.")] = 2,
    as_json: Json = False,
) -> None:
    """Long searches against restarts at equal CPU, random changes, and plans by prediction."""
    names, settings = cases.split(","), tuple(overrides or ())
    if unknown := [name for name in names if name not in CASES]:
        raise typer.BadParameter(f"{unknown[0]!r}: no such case; there are {', '.join(CASES)}", param_hint="--cases")
    asked, lengths = numbers(budgets, "--budgets"), numbers(restarts, "--restarts") if restarts else []
    searches = Searches(out / "searches.jsonl")
    limits = {name: [budget for budget in asked if budget <= max(CASES[name].most, asked[0])] for name in names}
    chains = list[tuple[str, list[Task]]]()
    for name in names:
        make = partial(Task, CASES[name], settings=settings)
        short = max((length for length in lengths if length < limits[name][-1]), default=0)
        chains.append((name, [make("compile", 0, 1)]))
        chains += [(name, [make(arm, seed, limits[name][-1]) for arm in ("search", "random")]) for seed in range(seeds)]
        chains += [(name, [make("search", SHORT_SEED + k, short)]) for k in range(pool if short else 0)]
        if optimum and len(network(CASES[name].network, CASES[name].machine).operators) <= FEW_OPERATORS:
            chains.append((name, [make("optimum", 0, 1)]))
    with ThreadPoolExecutor(processes) as threads:
        list(threads.map(lambda chain: searches.run(chain[0], chain[1], processes > 1), chains))
    found: dict[str, dict[tuple[str, int], Row]] = {name: {} for name in names}
    for name, tasks in chains:
        found[name] |= {(task.arm, task.seed): record for task in tasks if (record := searches.find(task)) is not None}
    rows = [row for name in names for row in readings(name, found[name], limits[name], lengths, seeds)]
    write_rows(out / "budget.csv", rows)
    atomic_write(out / "budget.html", [draw(found, rows).encode()])
    cuts = [row for name in names if ("optimum", 0) in found[name] for row in show_cuts(name, found[name], seeds)]
    columns = ("<case", "<level", "seed", "cuts", "best cut=best_cut", "rank of the search's cut=rank")
    over = ("it over best=over_best_cut:-1+.2%", "search's program over best cut=search_over_best_cut:-1+.2%")
    shown = [*show(rows, lengths), *([Table.of(cuts, *columns, *over)] if cuts else [])]
    finish("budget", out, [*rows, *cuts], shown, searches.cpu_s, as_json)
