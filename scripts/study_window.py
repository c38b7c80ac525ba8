"""Study of the sliding window: its gain, and the cost of running without its limit.

For every network and seed a search; then, per level, variants of its best program with the same cuts and blocks.  They differ in segments
of several operators:

* sequence: block after block, operator after operator (W = 1; engines look ahead as everywhere);
* formula: list-scheduled, W = max(1, min(ceil(latency / II), floor((capacity - resident) / live bytes per block)));
* unlimited: list-scheduled without a limit (W = infinite), breadth-first, every block alive, in every segment that then fits L1
  (`unlimited_segments`), by the formula in the others: the value of no limit on the real machine;
* greedy: without a limit everywhere, otherwise as the formula's, in a large enough L1; `roomy_cycles` is the effect of such an L1 on
  the formula's program;
* searched: the fastest of the search's own program (`own_cycles`), of the three above, and of the one in which every segment has the
  window that is fastest when it is measured alone (`fastest`).

`sequence` uses a plan chosen with windows, which flatters windows; so `without_cycles` is the best program of a second search of as many
candidates without windows (`use.window=false`).  Peaks are those of L1; `greedy_over_formula_bytes` is the largest ratio in one segment.
The table shows medians over seeds, the CSV every seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from compiler.pipeline import Compiler, ScheduledShare
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.space.decode import decode, plan_of
from compiler.space.gene import ALL, FORMULA, WINDOWS, Gene
from compiler.target.target_graph import TargetGraph
from scripts.studies import CELL, Arm, Pair, Row, Study, Table, groups, means, medians
from simulator.npu.machine import Machine
from tuner.measure.incremental_timer import Timers

LARGE_L1_BYTES = 1 << 26
FEWER_BYTES = 2.0  # the goal: greedy's peak over the formula's, somewhere
GAINS = ("formula", "unlimited", "searched", "greedy")
Cycles = dict[str, int]


def with_l1(machine: Machine, size_bytes: int) -> Machine:
    """The machine with another L1."""
    raw = machine.model_dump()
    raw["buffers_bytes"]["L1"] = size_bytes
    return Machine.model_validate(raw)


class Programs:
    """Segments of one unit, compiled and measured."""

    def __init__(self, target_graph: TargetGraph) -> None:
        self.target_graph, self.compiler = target_graph, Compiler(target_graph)
        self.timers = Timers(self.compiler, target_graph.machine)

    def time_program(self, segments: Sequence[SegmentPlan]) -> tuple[Cycles, list[int]] | None:
        """Cycles of the program per level, and the peak of L1 in bytes per segment; None where a segment does not fit."""
        parts = self.compiler.parts(plan_of(self.target_graph, list(segments)))
        if isinstance(parts, Infeasible):
            return None
        peaks = [0] * len(segments)
        for part in parts:
            peaks[part.segment] = max(peaks[part.segment], part.lowered.peak_bytes["L1"])
        return self._cycles(parts), peaks

    def time_segment(self, segment: SegmentPlan, start: int) -> Cycles | None:
        """Cycles of one segment per level; None where it does not fit."""
        parts = self.compiler.alone(segment, start)
        return None if isinstance(parts, Infeasible) else self._cycles(parts)

    def _cycles(self, parts: Sequence[ScheduledShare]) -> Cycles:
        return {level: times.cycles for level, times in self.timers.times(list(parts), tuple(self.target_graph.machine.contention)).items()}


def window_plans(programs: Programs, gene: Gene, level: str) -> dict[str, SegmentPlan]:
    """The segment as its gene has it, in sequence, by the formula, without a limit, and with the window that is fastest at a level."""
    target_graph = programs.target_graph
    gene_plan = decode(target_graph, gene)
    assert gene_plan is not None
    sequence = decode(target_graph, gene._replace(window=1, sliding=False)) or gene_plan
    if gene.stop - gene.start == 1:
        return dict.fromkeys(("own", "sequence", "formula", "unlimited", "fastest"), gene_plan)
    choices = [decode(target_graph, gene._replace(window=window, sliding=True)) for window in WINDOWS]
    measured = [(plan, programs.time_segment(plan, gene.start)) for plan in (sequence, gene_plan, *choices) if plan is not None]
    fits = [(plan, cycles) for plan, cycles in measured if cycles is not None]
    fitting = [plan for plan, _ in fits]
    formula, unlimited = (choices[WINDOWS.index(window)] for window in (FORMULA, ALL))
    formula_plan = formula if formula in fitting else sequence
    fastest = min(fits, key=lambda item: item[1][level])[0]
    unlimited_plan = unlimited if unlimited in fitting else formula_plan
    return {"own": gene_plan, "sequence": sequence, "formula": formula_plan, "unlimited": unlimited_plan, "fastest": fastest}


def rows(pair: Pair) -> Iterator[Row]:
    """A row per level."""
    search, target_graph = pair.results["windows"], pair.results["windows"].target_graph
    programs, roomy = Programs(target_graph), Programs(replace(target_graph, machine=with_l1(target_graph.machine, LARGE_L1_BYTES)))
    for level, best in zip(search.levels, search.best, strict=True):
        # whether there is anything to schedule: several operators, several blocks or images
        sliding = [gene.stop - gene.start > 1 and gene.blocks * target_graph.storages[0].n > 1 for gene in best.genome]
        plans = [window_plans(programs, gene, level) for gene in best.genome]
        greedy = [
            plan["formula"].model_copy(update={"window": "all", "sliding": True}) if slide else plan["formula"]
            for plan, slide in zip(plans, sliding, strict=True)
        ]
        timings = {kind: programs.time_program([plan[kind] for plan in plans]) for kind in plans[0]}
        timings |= {"greedy": roomy.time_program(greedy), "roomy": roomy.time_program([plan["formula"] for plan in plans])}
        # `fastest` alone may not fit beside its neighbours
        fitting = {kind: result for kind, result in timings.items() if result is not None}
        cycles = {kind: result[0][level] for kind, result in fitting.items()}
        searched = min((kind for kind in fitting if kind not in ("greedy", "roomy")), key=lambda kind: cycles[kind])
        fitting["searched"], cycles["searched"] = fitting[searched], cycles[searched]
        ratios = [wide / narrow for wide, narrow, slide in zip(fitting["greedy"][1], fitting["formula"][1], sliding, strict=True) if slide]
        yield {
            "level": level, "segments": len(plans), "sliding_segments": sum(sliding),
            "unlimited_segments": sum(plan["unlimited"].window == "all" and slide for plan, slide in zip(plans, sliding, strict=True)),
            **{f"{kind}_cycles": cycles[kind] for kind in ("sequence", "own", *GAINS, "roomy")},
            **{f"{kind}_peak_l1_bytes": max(fitting[kind][1]) for kind in GAINS},
            **{kind: cycles["sequence"] / cycles[kind] for kind in GAINS},
            "without_cycles": pair.results["without"].cycles[level], "search": pair.results["without"].cycles[level] / cycles["searched"],
            "greedy_over_formula_bytes": max(ratios, default=1.0), "candidates": pair.candidates,
        }  # fmt: skip


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Table, geometric means, goals."""
    table, gains = medians(rows, *CELL), (*GAINS, "search")
    fits = [row | {"fits": f"{row['unlimited_segments']} of {row['sliding_segments']}"} for row in table]
    yield Table.from_rows(
        fits, "<network", "<level", "sequence=sequence_cycles", *(f"{kind}:.3fx" for kind in gains),
        *(f"{kind} B={kind}_peak_l1_bytes" for kind in GAINS), "most, x=greedy_over_formula_bytes:.2f", "unlimited fits=fits",
    )  # fmt: skip
    yield "formula, unlimited, searched, greedy: of the same segments in sequence; search: of a search without windows"
    for mean in means(table, gains):
        yield f"{mean['level']}, geometric means: " + ", ".join(f"{kind} {mean[kind]:.3f}x" for kind in gains)
    goals = {
        ("searched", "unlimited"): "searched never slower than unlimited",
        ("own", "unlimited"): "nor the search's own program",
        ("roomy", "greedy"): "formula never slower than greedy, both in a large L1",
    }
    for (first_kind, second_kind), text in goals.items():
        slower_counts = {
            key: sum(row[f"{first_kind}_cycles"] > row[f"{second_kind}_cycles"] for row in group)
            for key, group in groups(rows, "network", "level").items()
        }
        failures = [f"{name} {level} ({count})" for (name, level), count in slower_counts.items() if count]
        yield f"{text}: {'reached' if not failures else 'not reached, seeds: ' + ', '.join(failures)}"
    largest = max(row["greedy_over_formula_bytes"] for row in table)
    reached = "reached" if largest >= FEWER_BYTES else "not reached"
    yield f"a peak lower than greedy's by {FEWER_BYTES:g} or more somewhere: {reached} ({largest:.2f})"


ONE_CORE = "use.cores=false"
STUDY = Study("window", {"windows": Arm((ONE_CORE,)), "without": Arm((ONE_CORE, "use.window=false"))}, rows, show)
