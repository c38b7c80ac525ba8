"""Study of larger budgets: long searches against independent restarts at equal CPU time, random mutations, and plans by prediction.

| arm | is |
|---|---|
| compile | the plans of `tilefarm compile`, the start of all other arms |
| search | `tuner.Search` with the default configuration; its curve is read at every budget, as a search does not know its own |
| random | random mutations of the best program so far, the levels in turn, with the CPU seconds of the search |
| restarts | searches of few programs with other seeds, the best of as many as the CPU seconds of the search allow |

Restarts are drawn from a pool: short searches, and the beginnings of the other seeds' long ones.  The best of k of them is the mean over
all draws of k without replacement, in closed form.  If k exceeds the size of the pool, it is the best of the pool: k restarts would find
more, which flatters the search; the table has k and the size of the pool.

Simulations are measured programs, segments and stages, programs that a search simulates before it measures one, and those of `compile`.
All figures are of log(cycles / bound), mean over the levels of a case.  Gains are paired by seed, and their 95% intervals are Student's t:
over seeds in a case, over cases in the mean.

A case measured on a board that differs from its description has a hidden machine as its clock (`study_board.py`).

The distance of the champions from the bound is the product of three: the best program that any arm and seed has over them (search: a better
genome is known), that program over the work of its busiest engine (waiting: start, latency, dependences, of which the bound knows little),
and that work over the bound (work: transfers and steps beyond the least, by tilings and segments).  Prediction is what search has gained.

`--optimum`: on graphs of few operators every division into segments is simulated, with the fastest settings of each segment alone (blocks,
halos, weights).  It gives the rank of the divisions of the search's champions.  A search has more choices, so its program may be faster.

Every search appends a line to OUT/searches.jsonl at its end, and is not repeated for the same network, machine, settings and simulator.
A larger budget needs a new search, another source tree another OUT.  CPU seconds are those of separate processes; with `--processes 1`
later searches profit from caches of earlier ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, NamedTuple

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
Records = Mapping[tuple[str, int], Row]
"""Arm and seed -> record."""


def read_curve(record: Row, limit: float, column: int = 0) -> list[float]:
    """Last point within a limit of programs (column 0) or CPU seconds (1); at least the first one."""
    return [point for point in record["points"] if point[column] <= limit or point is record["points"][0]][-1]


def expect_best(values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """[levels]: mean of the least of k rows of [rows, levels], over all draws without replacement."""
    count, k = len(values), min(k, len(values))
    shares = [math.comb(count - 1 - rank, k - 1) / math.comb(count, k) for rank in range(count)]
    return np.array(shares) @ np.sort(values, axis=0)


def read_rows(name: str, records: Records, budgets: Sequence[int], restarts: Sequence[int], seeds: int) -> Iterator[Row]:
    """A row per budget, seed and level: of every arm log(cycles / bound), and k and pool of restarts."""
    prediction = records["compile", 0]
    bounds, searches = np.array(prediction["bounds"]), {seed: record for (arm, seed), record in records.items() if arm == "search"}

    def over_bound(point: Sequence[float]) -> NDArray[np.float64]:
        return np.log(np.array(point[3:]) / bounds)

    for budget, seed in itertools.product(budgets, range(seeds)):
        _, cpu_s, simulations, *_ = point = read_curve(searches[seed], budget)
        logs = {"search": over_bound(point), "compile": over_bound(prediction["points"][0])}
        logs["random"] = over_bound(read_curve(records["random", seed], cpu_s, 1))
        simulations += prediction["points"][0][2]
        row: Row = {"case": name, "programs": budget, "seed": seed, "cpu_s": cpu_s, "simulations": int(simulations)}
        for length in [length for length in restarts if length < budget]:
            pool = [
                read_curve(pool_record, length)
                for pool_seed, pool_record in searches.items()
                if pool_seed != seed and pool_record["programs"] >= length
            ]
            if pool:
                k = max(1, int(cpu_s / np.mean([end[1] for end in pool])))
                logs[f"restarts_{length}"] = expect_best(np.array([over_bound(end) for end in pool]), k)
                row |= {f"k_{length}": k, f"pool_{length}": len(pool)}
        for place, level in enumerate(prediction["levels"]):
            yield row | {"level": level, **{arm: float(values[place]) for arm, values in logs.items()}}


class Gain(NamedTuple):
    """Mean gain and its 95% interval; one value has none."""

    mean: float
    low: float
    high: float

    @staticmethod
    def estimate(logs: Sequence[float]) -> Gain:
        mean, count = float(np.mean(logs)), len(logs)
        half = student.ppf(0.975, count - 1) * np.std(logs, ddof=1) / math.sqrt(count) if count > 1 else math.nan
        return Gain(math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half))

    @property
    def cells(self) -> tuple[str, str]:
        return f"{self.mean:+.2%}", "" if math.isnan(self.low) else f"{self.low:+.2%} .. {self.high:+.2%}"

    @property
    def saturated(self) -> bool:
        return (self.mean if math.isnan(self.high) else self.high) < SATURATED


def compare_seeds(rows: Sequence[Row], arm: str) -> list[float]:
    """Mean logarithm over levels, per seed, of the cycles of an arm's programs over those of the search's."""
    return [float(np.mean([row[arm] - row["search"] for row in levels])) for levels in groups(rows, "seed").values() if arm in levels[0]]


def show(rows: Sequence[Row], restarts: Sequence[int]) -> Iterator[Table | str]:
    """A line per case and budget, the means over cases, and a conclusion."""
    arms = {"compile": "compile", "random": "random", **{f"restarts_{length}": f"restarts of {length}" for length in restarts}}
    lines, verdicts = list[tuple[object, ...]](), list[str]()
    for (budget,), budget_rows in groups(sorted(rows, key=lambda row: row["programs"]), "programs").items():
        cases = {name: {arm: compare_seeds(levels, arm) for arm in arms} for (name,), levels in groups(budget_rows, "case").items()}
        for (name,), levels in groups(budget_rows, "case").items():
            gains = [Gain.estimate(logs).cells if logs else ("", "") for logs in cases[name].values()]
            pools = [
                f"{row[f'k_{length}']} of {row[f'pool_{length}']}" if f"k_{length}" in (row := levels[0]) else "" for length in restarts
            ]
            cpu_s, simulations, over_bound = (float(np.mean([row[key] for row in levels])) for key in ("cpu_s", "simulations", "search"))
            numbers = (len(cases[name]["compile"]), f"{cpu_s:,.0f}", f"{simulations:,.0f}", f"{math.exp(over_bound):.3f}")
            lines.append((name, budget, *numbers, *itertools.chain(*gains), *pools))
        means = {arm: [float(np.mean(logs[arm])) for logs in cases.values() if logs[arm]] for arm in arms}
        overall = {arm: Gain.estimate(logs) for arm, logs in means.items() if logs}
        cells = (overall[arm].cells if arm in overall else ("", "") for arm in arms)
        lines.append((f"mean of {len(cases)}", budget, *[""] * 4, *itertools.chain(*cells), *[""] * len(restarts)))
        saturated = [name for name, logs in cases.items() if Gain.estimate(logs["compile"]).saturated]
        verdicts.append(f"{budget:,} programs: search's part is below {SATURATED:.0%} (saturated): {', '.join(saturated) or 'nowhere'}")
        for arm, gain in overall.items():
            if arm != "compile":
                verdict = "search is better" if gain.low > 0 else f"{arms[arm]} is better" if gain.high < 0 else "no difference shown"
                gain_title = f"gain over {arms[arm]} at equal CPU"
                verdicts.append(f"{budget:,} programs: {gain_title}: {', '.join(filter(None, gain.cells))}: {verdict}")
    columns = ("<case", "programs", "seeds", "CPU s", "simulations", "over bound")
    compared = itertools.chain(*((f"over {title}", "<95%") for title in arms.values()))
    yield "gain of the search: how much longer the other arm's programs take, and 95% intervals"
    yield Table((*columns, *compared, *(f"k of {length}" for length in restarts)), lines)
    yield from verdicts


def split_distance(name: str, records: Records, seeds: int) -> Iterator[Row]:
    """Row per level: factors of the distance of the longest searches' programs from the bound, geometric means over seeds."""
    compiled = records["compile", 0]
    measured = [record for (arm, _), record in records.items() if arm in ARMS[:2]]
    for place, (level, bound) in enumerate(zip(compiled["levels"], compiled["bounds"], strict=True)):
        best, busiest = min((record["points"][-1][3 + place], record["busiest"][place]) for record in measured)
        champions = np.mean([math.log(records["search", seed]["points"][-1][3 + place]) for seed in range(seeds)])
        prediction = math.log(compiled["points"][0][3 + place]) - champions
        factors = {"prediction": prediction, "search": champions - math.log(best), "waiting": math.log(best / busiest)}
        yield {"case": name, "level": level, **{key: math.exp(log) for key, log in factors.items()}, "work": busiest / bound}


def rank_cuts(name: str, records: Records, seeds: int) -> Iterator[Row]:
    """Row per level and seed: rank of the division of the search's champion, and its cycles over those of the best one."""
    for place, (level, cuts) in enumerate(records["optimum", 0]["cuts"].items()):
        best = min(cuts.values())
        for search in (records["search", seed] for seed in range(seeds)):
            cycles = cuts.get(search["cuts"][level])
            rank = None if cycles is None else sum(took < cycles for took in cuts.values()) + 1
            row: Row = {"case": name, "level": level, "seed": search["seed"], "cuts": len(cuts), "best_cut": best, "rank": rank}
            over_best = None if cycles is None else cycles / best
            yield row | {"over_best_cut": over_best, "search_over_best_cut": search["points"][-1][3 + place] / best}


def draw(cases: Mapping[str, Records], rows: Sequence[Row]) -> str:
    """A page: of every case cycles over the bound against CPU seconds and simulations; colours are arms, dashes levels."""
    figures, tabs = Figures(), dict[str, str]()
    for name, records in cases.items():
        start, parts = records["compile", 0], []
        curves = [
            (arm, seed, np.array(record["points"])) for (arm, seed), record in records.items() if arm in ARMS[:2] and seed < SHORT_SEED
        ]
        for column, title in ((1, "CPU seconds"), (2, "simulations")):
            plot = figure(title, "cycles / bound")
            limits = [max(0.01, float(end)) for _, _, points in curves for end in (points[0, column], points[-1, column])]
            flat = np.array([[0, end, end, *start["points"][0][3:]] for end in (min(limits), max(limits))])
            for place, level in enumerate(start["levels"]):
                for arm, seed, points in [*curves, (ARMS[2], 0, flat)]:
                    line = {"shape": "hv", "color": color(ARMS.index(arm)), "dash": DASHES[place % len(DASHES)]}
                    y = points[:, 3 + place] / start["bounds"][place]
                    plot.add_scatter(x=points[:, column], y=y, name=f"{arm}, {level}", mode="lines", line=line, showlegend=not seed)
                level_rows = [row for row in rows if row["case"] == name and row["level"] == level]
                for arm in [key for key in level_rows[-1] if key.startswith("restarts_") and column == 1]:
                    x, y = zip(*[(row["cpu_s"], math.exp(row[arm])) for row in level_rows if arm in row], strict=True)
                    marker = {"color": color(len(ARMS)), "symbol": place}
                    plot.add_scatter(x=x, y=y, name=f"{arm.replace('_', ' of ')}, {level}", mode="markers", marker=marker)
            plot.update_xaxes(**log_axis(min(limits), max(limits)))
            parts.append(figures.place(plot))
        tabs[name] = "".join(parts)
    lead = "Best program so far over the bound, a line per seed. Random changes and restarts have the CPU seconds of the search."
    return html_document("What a larger budget buys", f"{len(tabs)} cases", [html_section("curves", "Curves", lead, html_tabs(tabs))])


def parse_counts(text: str, option: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise typer.BadParameter(f"{text!r}: expected numbers of programs, as in 50,384", param_hint=option)
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
    counts, lengths = parse_counts(budgets, "--budgets"), parse_counts(restarts, "--restarts") if restarts else []
    limits = {name: [budget for budget in counts if budget <= max(CASES[name].max_cuts, counts[0])] for name in names}
    chains, searches = list[tuple[str, list[Task]]](), Searches(out / "searches.jsonl")
    for name in names:
        task = partial(Task, CASES[name], settings=settings)
        short = max((length for length in lengths if length < limits[name][-1]), default=0)
        chains.append((name, [task("compile", 0, 1)]))
        chains += [(name, [task(arm, seed, limits[name][-1]) for arm in ("search", "random")]) for seed in range(seeds)]
        chains += [(name, [task("search", SHORT_SEED + k, short)]) for k in range(pool if short else 0)]
        if optimum and len(network(CASES[name].network, CASES[name].machine).operators) <= FEW_OPERATORS:
            chains.append((name, [task("optimum", 0, 1)]))
    with ThreadPoolExecutor(processes) as threads:
        list(threads.map(partial(searches.run, own_process=processes > 1), *zip(*chains, strict=True)))
    records: dict[str, dict[tuple[str, int], Row]] = {name: {} for name in names}
    for name, tasks in chains:
        records[name] |= {
            (search_task.arm, search_task.seed): record for search_task in tasks if (record := searches.find(search_task)) is not None
        }
    rows = [row for name in names for row in read_rows(name, records[name], limits[name], lengths, seeds)]
    distances = [row for name in names for row in split_distance(name, records[name], seeds)]
    write_rows(out / "budget.csv", rows)
    atomic_write(out / "budget.html", [draw(records, rows).encode()])
    cuts = [row for name in names if ("optimum", 0) in records[name] for row in rank_cuts(name, records[name], seeds)]
    columns = ("<case", "<level", "seed", "cuts", "best cut=best_cut", "rank of the search's cut=rank")
    ratio_columns = ("it over best=over_best_cut:-1+.2%", "search's program over best cut=search_over_best_cut:-1+.2%")
    factors = [f"{factor}={factor}:.3f" for factor in ("prediction", "search", "waiting", "work")]
    tables = [*show(rows, lengths), Table.from_rows(distances, "<case", "<level", *factors)]
    if cuts:
        columns = ("<case", "<level", "seed", "cuts", "best cut=best_cut", "rank of the search's cut=rank")
        ratio_columns = ("it over best=over_best_cut:-1+.2%", "search's program over best cut=search_over_best_cut:-1+.2%")
        tables.append(Table.from_rows(cuts, *columns, *ratio_columns))
    finish("budget", out, [*rows, *distances, *cuts], tables, searches.cpu_s, as_json)
