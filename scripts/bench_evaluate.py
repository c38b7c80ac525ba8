"""Rate at which a worker evaluates genomes, and time of each stage.

    python scripts/bench_evaluate.py [--networks resnet50,...] [--machine edge] [--dtype float16] [--seconds S] [--seed S]
                                     [--cold M,...] [--json]

Measured is the work of workers in a run: whole programs (each a mutation of the previous one, at every level of the machine, with warm
caches), tasks of one operator ("tilings"), segments, and features without a measurement.  No item is repeated.  Rates are per second of CPU
time of one thread, so other load on the host does not change them; `bench_farm.py` measures the cost of the farm.  For comparison, the same
programs are timed from their beginning, and once more with records written, priced and matched again, which evaluation avoids.
ResNet-50 is included in int8.  Its operators have fewer instructions, because a block has twice the channels, so time per instruction
alone does not show which instructions are slower.

Time added by a segment, by an operator of it and by an instruction of it: fitted to the times of all segments.  Segments of several
networks are measured in turns.  For each network after the first, ratios to the first network are given for these values and for the mean
over segments that fit in both, with 95% intervals over draws of as many segments; and the ratio of means that would follow if each part
cost the same as in the first network.  Networks with equal numbers of operators get the same segments.

Whole programs, layer by layer: time per instruction of a fresh compiler and of the simulator at all levels, networks in turns.  Tables of
the unit, of blocks and of tilings exist already, as in the second compilation of a process.

Cold compiles: `tilefarm compile` in a separate process, layer by layer, with numba's cache warm: CPU seconds including imports, peak
memory, instructions.  Goals: ResNet-50 in 5 s, a NASNet in 20 s, 2 GB.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray

from compiler.build import default_plan
from compiler.cost.features import raw_features
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene, Genome, block_counts, choice_count
from compiler.space.initial import single_operators
from compiler.space.mutators import MOVES, random_genome, repaired
from compiler.target.target_graph import TargetGraph
from scripts.studies import Networks, in_file_order, network_list
from simulator.npu.errors import BadInputError
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from simulator.timing import prepare, simulate_levels
from tuner.measure.evaluator import Evaluator, build_evaluator
from tuner.measure.incremental_timer import Timers
from tuner.measure.npu_target import Npu
from tuner.measure.request import Measurement, Request

WARM = 8  # items before the clock starts
DRAWS = 200  # of segments, for an interval
ADDED = ("us_per_segment", "us_per_operator", "us_per_instruction")
MECHANISMS = ("toggle_held", "cut_on_chip", "change_passes", "change_end")  # moves, beside the lookahead
STAGES = ("realise", "features", "emission", "synchronise", "simulation")
RECORDS = ("link", "prepare")  # what takes the place of "synchronise" where records are written
T = TypeVar("T")


def mutations(target_graph: TargetGraph, seed: int, mechanisms: bool = True) -> Iterator[Genome]:
    """Feasible genomes, each one mutation away from the previous one.  mechanisms: False leaves out everything that couples segments or
    reorders records: held tensors, passes, ends of L1 and the lookahead.
    """
    rng = np.random.default_rng([seed, 1])
    moves = [move for name, move in MOVES.items() if mechanisms or name not in MECHANISMS]

    def repair(genome: Genome) -> Genome | None:
        if not mechanisms:
            genome = tuple([gene._replace(lookahead=1) for gene in genome])
        return repaired(target_graph, genome, lambda gene: decode(target_graph, gene) is not None)

    genome = repair(random_genome(target_graph, rng)) or single_operators(target_graph)
    if isinstance(genome, Infeasible):
        raise BadInputError(str(genome))
    drawn_genomes = {genome}
    while True:
        child = moves[int(rng.integers(len(moves)))](target_graph, genome, rng)
        child = child and repair(child)
        if child and child not in drawn_genomes:
            drawn_genomes.add(child)
            genome = child
            yield genome


def genes(target_graph: TargetGraph, seed: int, mean_length: float) -> Iterator[Gene]:
    """Distinct random genes; `mean_length` 1: single operators.  Some do not fit: that is an answer too."""
    rng = np.random.default_rng([seed, 2, int(10 * mean_length)])
    drawn_genes = set()
    while True:
        start = int(rng.integers(len(target_graph.operators)))
        stop = min(len(target_graph.operators), start + int(rng.geometric(1 / mean_length)))
        counts = block_counts(target_graph, start, stop)
        blocks, chunk = counts[int(rng.integers(len(counts)))], int(rng.integers(3))
        choices = tuple(int(rng.integers(min(8, choice_count(target_graph, k)))) for k in range(start, stop))
        prefetch, window = 1 if rng.random() < 0.5 else 2, 1 if rng.random() < 0.5 else 2
        gene = Gene(start, stop, blocks, prefetch, window, chunk, "reused" if rng.integers(2) else "streamed", choices)
        if gene not in drawn_genes:
            drawn_genes.add(gene)
            yield gene


def varied(target_graph: TargetGraph, gene: Gene, rng: np.random.Generator) -> Gene:
    """The gene with windows, halos and cores that `genes` does not draw."""
    cores = tuple(range(1 + int(rng.integers(target_graph.machine.cores))))
    sliding, cached_operators = bool(rng.integers(2)), int(rng.integers(1 << min(8, gene.stop - gene.start)))
    return gene._replace(window=int(rng.integers(-1, 4)), sliding=sliding, cached=cached_operators, cores=cores)


def rate(measure: Callable[[Request], Measurement], requests: Iterator[Request], seconds: float) -> dict[str, float]:
    """Measurements per second of CPU time, over at least `seconds` of it, or all there are."""
    for request in islice(requests, WARM):
        measure(request)
    count = fitting = 0
    total_s = longest = 0.0
    for request in requests:
        begin = time.thread_time()
        measurement = measure(request)
        took = time.thread_time() - begin
        total_s, longest, count, fitting = total_s + took, max(longest, took), count + 1, fitting + (measurement.status == "ok")
        if total_s >= seconds:
            break
    return {
        "per_s": count / total_s,
        "ms": 1e3 * total_s / count,
        "longest_ms": 1e3 * longest,
        "count": count,
        "fitting_share": fitting / count,
    }


def marginal(rows: NDArray[np.float64]) -> dict[str, float]:
    """Time added by a segment, by an operator and by an instruction, in microseconds.  rows: [n, 3], operators, instructions, and
    microseconds of each segment.

    Fit by least absolute deviations (reweighted least squares): interruptions of a few segments, and tables built once, do not count.
    """
    predictors, times = np.column_stack((np.ones(len(rows)), rows[:, :2])), rows[:, 2]
    weights = np.ones(len(rows))
    for _ in range(50):
        coefficients = np.linalg.lstsq(predictors * weights[:, None], times * weights, rcond=None)[0]
        weights = 1 / np.sqrt(np.maximum(1.0, np.abs(times - predictors @ coefficients)))
    return dict(zip(ADDED, coefficients.tolist(), strict=True))


def _costs(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Microseconds of an instruction in the mean, and `marginal`."""
    return np.array([rows[:, 2].sum() / rows[:, 1].sum(), *marginal(rows).values()])


def compare_costs(rows: NDArray[np.float64], first: NDArray[np.float64]) -> dict[str, Any]:
    """Ratios of the costs of segments to those of the first network, each with the interval that contains 95% of draws of pairs of
    segments.

    mean: per instruction.  at_its_costs: the ratio of means if every segment, operator and instruction cost the same as in the first
    network.
    """
    ratios, n = _costs(rows) / _costs(first), len(rows)
    samples = [_costs(rows[pairs]) / _costs(first[pairs]) for pairs in np.random.default_rng(0).integers(n, size=(DRAWS, n))]
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    ratio_rows = {
        name: {"ratio": float(ratios[i]), "low": float(low[i]), "high": float(high[i])} for i, name in enumerate(("mean", *ADDED))
    }
    per_segment, per_operator, per_instruction = marginal(first).values()
    predicted_us = [segments[:, :2] @ (per_operator, per_instruction) + per_segment for segments in (rows, first)]
    ratio = predicted_us[0].sum() / rows[:, 1].sum() / (predicted_us[1].sum() / first[:, 1].sum())
    return {**ratio_rows, "at_its_costs": float(ratio)}


class Stages:
    """`Evaluator.measure` stage by stage, with a clock around each; then the same program by its records, for the ratio.

    resuming: as programs are timed; segments alone, which have nothing in common, are not.
    """

    def __init__(self, target_graph: TargetGraph, levels: tuple[str, ...], resuming: bool) -> None:
        self.target_graph, self.levels, self.compiler = target_graph, levels, Compiler(target_graph)
        self.timers = Timers(self.compiler, target_graph.machine, resuming)
        self.segments: dict[Gene, tuple[SegmentPlan, Any] | None] = {}
        self.reset()

    def reset(self) -> None:
        self.seconds = dict.fromkeys((*STAGES, *RECORDS), 0.0)
        self.count = self.operators = self.instructions = 0
        self.rows = list[tuple[int, int, float] | None]()  # of each genome that fits: operators, instructions, microseconds

    def _timed(self, stage: str, call: Callable[[], T]) -> T:
        begin = time.thread_time()
        out = call()
        self.seconds[stage] += time.thread_time() - begin
        return out

    def _segment(self, gene: Gene) -> tuple[SegmentPlan, Any] | None:
        if gene not in self.segments:
            plan = self._timed("realise", lambda: decode(self.target_graph, gene))
            self.segments[gene] = None
            if plan is not None:
                self.segments[gene] = (plan, self._timed("features", lambda: raw_features(self.target_graph, plan, gene.start)))
        return self.segments[gene]

    def measure(self, genome: Genome) -> None:
        target_graph, compiler, machine = self.target_graph, self.compiler, self.target_graph.machine
        begin_s = self._total_s
        self.rows.append(None)
        fitting = [segment for gene in genome if (segment := self._segment(gene)) is not None]
        if len(fitting) < len(genome):
            return
        segments = [plan for plan, _ in fitting]
        complete = genome[0].start == 0 and genome[-1].stop == len(target_graph.operators)
        parts = self._timed(
            "emission",
            lambda: compiler.parts(plan_of(target_graph, segments)) if complete else compiler.alone(segments[0], genome[0].start),
        )
        if isinstance(parts, Infeasible):
            return
        timer = self.timers.choose(parts)
        schedule = self._timed("synchronise", lambda: timer.scheduled(parts))
        self._timed("simulation", lambda: timer.simulated(schedule, self.levels))
        linked = self._timed("link", lambda: compiler.link(parts))
        self._timed("prepare", lambda: prepare(linked, machine))
        operators = sum(gene.stop - gene.start for gene in genome)
        self.count += 1
        self.operators += operators
        self.instructions += linked.instructions
        self.rows[-1] = operators, linked.instructions, 1e6 * (self._total_s - begin_s)

    @property
    def _total_s(self) -> float:
        """Seconds of evaluation, without the stages for comparison."""
        return sum([self.seconds[stage] for stage in STAGES])

    def report(self) -> dict[str, Any]:
        """Milliseconds per genome that fits and share of every stage; record_times: records instead of footprints, as a ratio."""
        total = self._total_s
        record_s = total + sum(self.seconds[stage] for stage in RECORDS) - self.seconds["synchronise"]
        return {
            "count": self.count,
            "instructions": self.instructions / self.count,
            "us_per_instruction": 1e6 * total / self.instructions,
            "us_per_operator": 1e6 * total / self.operators,
            "ms": {stage: 1e3 * self.seconds[stage] / self.count for stage in (*STAGES, *RECORDS)},
            "share": {stage: self.seconds[stage] / total for stage in STAGES},
            "record_times": record_s / total,
        }


def run_alternately(stages: Sequence[Stages], genomes: Sequence[Iterator[Genome]], seconds: float) -> list[dict[str, Any]]:
    """Reports of several stage timers (`Stages.report`), over at least `seconds` of each.

    Genomes of the timers alternate, so a temporary slowdown of the host affects all alike.
    """

    def turn() -> None:
        for stage, items in zip(stages, genomes, strict=True):
            stage.measure(next(items))

    while any(stage.count < WARM for stage in stages):
        turn()
    for stage in stages:
        stage.reset()
    while any(sum(stage.seconds.values()) < seconds or not stage.count for stage in stages):
        turn()
    return [stage.report() for stage in stages]


def bench_segments(target_graphs: Sequence[TargetGraph], seconds: float, seed: int) -> list[dict[str, Any]]:
    """Segments stage by stage, and the marginal costs of their parts, for all target graphs in turns."""
    stages = [Stages(target_graph, tuple(target_graph.machine.contention), resuming=False) for target_graph in target_graphs]
    reports = run_alternately(stages, [((gene,) for gene in genes(target_graph, seed + 2, 3.3)) for target_graph in target_graphs], seconds)
    out = []
    for report, stage in zip(reports, stages, strict=True):
        fitting = np.array([row for row in stage.rows if row is not None])
        pairs = np.array([pair for pair in zip(stage.rows, stages[0].rows, strict=True) if None not in pair])
        ratios = None if stage is stages[0] else compare_costs(pairs[:, 0], pairs[:, 1])
        out.append({"segment_stages": report, "marginal": marginal(fitting), "beside_first": ratios})
    return out


def layer_by_layer(target_graphs: Sequence[TargetGraph], seconds: float) -> list[dict[str, Any]]:
    """Median time per instruction of compiling and simulating whole programs, one operator per segment, over at least `seconds` of each."""
    plans, rows = [default_plan(target_graph) for target_graph in target_graphs], [list[tuple[float, float, int]]() for _ in target_graphs]
    while any(sum(row[0] + row[1] for row in graph_rows[1:]) < seconds for graph_rows in rows):
        for target_graph, plan, graph_rows in zip(target_graphs, plans, rows, strict=True):
            begin = time.thread_time()
            program = Compiler(target_graph).compile(plan)
            assert isinstance(program, Program)
            compiled = time.thread_time()
            simulate_levels(program, target_graph.machine, tuple(target_graph.machine.contention))
            graph_rows.append((compiled - begin, time.thread_time() - compiled, program.instructions))
    reports = []
    for graph_rows in rows:
        compiling, simulating, counts = zip(*graph_rows[1:], strict=True)  # the first one makes tables
        count = int(counts[0])
        medians = {"compile_ns": 1e9 * median(compiling) / count, "simulate_ns": 1e9 * median(simulating) / count}
        reports.append({"instructions": count, "count": len(counts), **medians})
    return reports


def cold_compile(model: str, machine: str) -> dict[str, Any]:
    """CPU seconds, peak memory and instructions of `tilefarm compile`, the second of two runs (POSIX only)."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tuner", "compile", model, "--machine", machine, "--layerwise"]
        words += ["--out", f"{folder}/out.onnx", "--json"]
        for _ in range(2):
            child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert child.stdout is not None
            assert child.stderr is not None
            out, errors = child.stdout.read(), child.stderr.read()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                raise BadInputError(f"--cold {model}: {errors.strip().splitlines()[-1] if errors.strip() else child.returncode}")
    levels = json.loads(out)["levels"]
    return {
        "model": model,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10),
        "instructions": max(row["instructions"] for row in levels.values()),
    }


def bench(target_graph: TargetGraph, seconds: float, seed: int) -> dict[str, Any]:
    levels = tuple(target_graph.machine.contention)
    evaluator = build_evaluator(target_graph, levels)
    programs = (Request("program", genome) for genome in mutations(target_graph, seed))
    tilings = (Request("segment", (gene,)) for gene in genes(target_graph, seed, 1.0))
    segments = (Request("segment", (gene,)) for gene in genes(target_graph, seed, 3.3))
    features = (Request("segment", (gene,), measure=False) for gene in genes(target_graph, seed + 1, 3.3))
    out: dict[str, Any] = {"levels": len(levels), "operators": len(target_graph.operators)}
    requests = {"programs": programs, "tilings": tilings, "segments": segments, "features": features}
    for name, items in requests.items():
        out[name] = rate(evaluator.measure, items, seconds)
    separable = (Request("program", genome) for genome in mutations(target_graph, seed, mechanisms=False))
    out["without_mechanisms"] = rate(build_evaluator(target_graph, levels).measure, separable, seconds)
    fresh = Evaluator(target_graph, levels, Npu(target_graph, levels, resuming=False))
    genomes = islice(mutations(target_graph, seed), WARM + int(out["programs"]["count"]))
    out["from_the_beginning"] = rate(fresh.measure, (Request("program", genome) for genome in genomes), float("inf"))
    (out["program_stages"],) = run_alternately([Stages(target_graph, levels, resuming=True)], [mutations(target_graph, seed + 1)], seconds)
    return out


def show(report: dict[str, Any]) -> None:
    for network in report["networks"]:
        _show(network, f"{network['network']} on {report['machine']}, {report['dtype']}")
    for r in report["cold"]:
        print(f"cold compile of {r['model']}: {r['cpu_s']:.1f} s of CPU, {r['peak_mb']:,.0f} MB, {r['instructions']:,} instructions")


def _show(report: dict[str, Any], title: str) -> None:
    print(f"{title}: {report['operators']} operators, {report['levels']} levels")
    for name in ("programs", "tilings", "segments", "features"):
        r = report[name]
        fit = f"{r['fitting_share']:.0%} fit"
        print(f"  {name:9s} {r['per_s']:9,.0f} per second and core   {r['ms']:7.3f} ms each, {fit}, {r['count']:,} measured")
    separable, fresh = report["without_mechanisms"], report["from_the_beginning"]
    print(f"  programs without mechanisms {separable['per_s']:,.0f} per second and core, {separable['ms']:.3f} ms each")
    print(f"  programs each from its beginning {fresh['per_s']:,.0f} per second and core, {fresh['ms']:.3f} ms each")
    for name in ("program_stages", "segment_stages"):
        r = report[name]
        parts = ", ".join(f"{stage} {r['ms'][stage]:.3f} ms ({r['share'][stage]:.0%})" for stage in STAGES)
        kind, times = name.split("_")[0], r["record_times"]
        row = f"{r['us_per_instruction']:.3f} us each, {r['us_per_operator']:.0f} us per operator"
        print(f"  {kind} of {r['instructions']:,.0f} instructions, {row}: {parts}; by its records {times:.2f} times as long")
    additions = ", ".join(f"{value:.3g} {name.replace('_', ' ')}" for name, value in report["marginal"].items())
    print(f"  added to a segment's time: {additions}")
    r = report["layer_by_layer"]
    took = f"{r['compile_ns']:.0f} ns to compile one, {r['simulate_ns']:.0f} ns to simulate one"
    print(f"  layer by layer {r['instructions']:,} instructions: {took}")
    if (ratios := report["beside_first"]) is not None:
        shown = {name: ratios[name] for name in ("mean", *ADDED)}
        ranges = {name: f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})" for name, row in shown.items()}
        note = f"{ratios['at_its_costs']:.2f} if everything added what it does there"
        additions = ", ".join(f"{ranges[name]} {name.removeprefix('us_').replace('_', ' ')}" for name in ADDED)
        print(f"  over the first network: {ranges['mean']} per instruction, {note}; added {additions}")


def main(
    networks: Networks = "resnet50,light:resnet50,quantised=qdq",
    machine: Annotated[str, typer.Option(help="Machine that is compiled for.")] = "edge",
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="Data type on the NPU.")] = "float16",
    seconds: Annotated[float, typer.Option(help="CPU time of every measurement.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Of weights and programs.")] = 0,
    cold: Annotated[
        str, typer.Option(metavar="M,...", help="Models compiled in processes of their own; '' for none.")
    ] = "light:resnet50,made:nasnet_mobile",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Programs, tilings, segments and features per second and core; cold compiles."""
    names, models = network_list(networks), network_list(cold)
    host = {"machine": machine, "dtype": dtype, "host": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
    try:
        target_graphs = [in_file_order(name, machine, DataType[dtype]) for name in names]
        segments = bench_segments(target_graphs, seconds, seed)
        layers = [{"layer_by_layer": row} for row in layer_by_layer(target_graphs, seconds)]
        runs = zip(names, target_graphs, segments, layers, strict=True)
        rows = [{"network": name, **bench(target_graph, seconds, seed), **row, **layer} for name, target_graph, row, layer in runs]
        report = {**host, "networks": rows, "cold": [cold_compile(model, machine) for model in models]}
    except BadInputError as error:
        raise typer.BadParameter(str(error)) from None
    print(json.dumps(report)) if as_json else show(report)


if __name__ == "__main__":
    typer.run(main)
