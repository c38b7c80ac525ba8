"""Study of the bound of docs/bounds.md: its distance from the best of all plans, on small graphs that can be searched exhaustively.

Each graph has one or two random operators.  Every division into segments is tried, and for one segment all plans of a grid: every block
count, halo, slots, window, resident or streamed weights, tilings, in all combinations.  Of two segments, each is varied beside the best
plan of the other, until neither improves.  Then hill climbing starts from the best genomes of each level, and from the best with other
divisions or blocks:  every other value of every gene field, including those outside the grid (strips, passes, orders, planes on VECTOR, all
tilings), and every mutation of the compiler itself.  The true optimum may be faster, and nearer to the bound, than the printed one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from statistics import geometric_mean, median
from typing import Annotated, Any

import numpy as np
import typer

from compiler.bound.bound import Bound
from compiler.ir.graph import Graph, Port
from compiler.ir.operators import Conv, Operator, Pool, Shape
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.planner.tweaks import CHANGES, apply_if_fits
from compiler.segment.channel_splits import input_counts, pass_counts
from compiler.segment.engine_split import divisible
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene, Genome, Weights, block_counts, choice_count, has_halos
from compiler.target.target_graph import TargetGraph
from scripts.studies import Json, Out, Row, Table, finish, groups, write_rows
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.timing import simulate_levels

L1_KIB = (1024,)
WINDOWS = ((1, False), (2, True), (4, True))
LOOKAHEADS = (16, 128, 1024)
STARTS = 4  # of a climb, which ends near where it begins: blocks and cuts change most
Best = dict[str, tuple[int, Genome]]


def random_graph(seed: int) -> tuple[Graph, str]:
    """Random graph, and its description."""
    rng = np.random.default_rng(seed)
    size, channels = int(rng.choice([14, 28, 56])), int(rng.choice([32, 64, 128, 256]))
    shapes: dict[str, Shape] = {"x": (1, channels, size, size)}
    operators: list[Operator] = []
    words = [f"{channels}x{size}x{size}"]
    x = "x"
    for k in range(int(rng.integers(1, 3))):
        c, y, kind = shapes[x][1], f"t{k}", rng.choice(["1x1", "1x1", "3x3", "3x3", "depthwise", "pool"])
        stride = int(rng.choice([1, 1, 2])) if shapes[x][2] > 14 else 1
        if kind == "pool" and k:
            operators.append(Pool(y, x, y, "max", (3, 3), (stride, stride), (1, 1, 1, 1)))
            words.append(f"pool/{stride}")
        else:
            wide = 1 if kind in ("1x1", "pool") else 3
            groups_, out = (c, c) if kind == "depthwise" else (1, int(rng.choice([32, 64, 128, 256, 512])))
            stride = stride if wide == 3 else 1
            weights = rng.standard_normal((out, c // groups_, wide, wide)).astype(np.float32) / np.float32(wide * c**0.5)
            pad = wide // 2
            residual = x if rng.integers(3) == 0 and stride == 1 and out == c and k and wide == 3 else None
            operators.append(
                Conv(y, x, y, weights, np.ones(out, np.float32), (stride, stride), (1, 1), (pad,) * 4, groups_, "relu", residual)
            )
            words.append(f"{kind}/{stride}->{out}" + ("+res" if residual else ""))
        shapes[y] = operators[-1].output_shape([shapes[name] for name in operators[-1].inputs])
        x = y
    graph = Graph("drawn", (Port("x", "x", shapes["x"]),), (Port(x, x, shapes[x]),), tuple(operators), shapes, digest=f"{seed:032x}")
    graph.verify()
    return graph, " ".join(words)


def random_machine(seed: int) -> Machine:
    raw = load_machine("edge").model_dump()
    raw["buffers_bytes"]["L1"] = int(np.random.default_rng([seed, 1]).choice(L1_KIB)) * 1024
    return Machine.model_validate(raw)


def genes(target_graph: TargetGraph, start: int, stop: int) -> tuple[Gene, ...]:
    """Plans of a segment that fit: all combinations of the values of the grid."""
    has_several, halo = stop - start > 1, has_halos(target_graph, start, stop)
    ranks = [(rank,) * (stop - start) if rank else () for rank in range(2)]
    weights: list[tuple[Weights, int]] = [("resident", 0), ("streamed", 0), ("streamed", 4)]
    genes_that_fit = []
    for blocks in block_counts(target_graph, start, stop):
        has_blocks = blocks > 1
        for cached_operators, prefetch, (window, sliding), (weights_kind, chunk), choices in itertools.product(
            (-1, 0) if halo and has_blocks else (0,),
            (2, 1) if has_blocks else (2,),
            WINDOWS if has_several and has_blocks else WINDOWS[:1],
            weights,
            ranks,
        ):
            gene = Gene(start, stop, blocks, prefetch, window, chunk, weights_kind, choices, cached=cached_operators, sliding=sliding)
            if decode(target_graph, gene) is not None:
                genes_that_fit.append(gene)
    return tuple(genes_that_fit)


def neighbours(target_graph: TargetGraph, gene: Gene) -> list[Gene]:
    """Genes with one field changed to another value, and with each mutation of the compiler."""
    start, stop = gene.start, gene.stop
    choices, zeros, operators = gene.choices or (0,) * (stop - start), (0,) * (stop - start), range(start, stop)
    values: dict[str, Sequence[Any]] = {
        "blocks": block_counts(target_graph, start, stop), "prefetch": (1, 2), "window": (1, 2, 3, 4), "sliding": (False, True),
        "columns": (1, 2, 4), "weights": ("resident", "streamed"), "chunk": range(5), "cached": (0, -1),
        "passes": (1, *pass_counts(target_graph, start, stop)), "input_passes": (1, *input_counts(target_graph, start, stop)),
        "lookahead": LOOKAHEADS, "overtake": (False, True), "urgent": (False, True),
        "choices": [
            _replace_at(choices, position, place) for position, k in enumerate(operators) for place in range(choice_count(target_graph, k))
        ],
        "on_vector": [
            _replace_at(zeros, position, planes)
            for position, plane_count in enumerate(divisible(target_graph, start, stop))
            for planes in range(plane_count)
        ],
    }  # fmt: skip
    candidates = [gene._replace(**{field: value}) for field, options in values.items() for value in options]
    candidates += [apply_if_fits(target_graph, gene, change) for change in CHANGES]
    return [candidate for candidate in dict.fromkeys(candidates) if candidate != gene]


def _replace_at(values: tuple[int, ...], position: int, value: int) -> tuple[int, ...]:
    """Tuple with one value replaced; () if all are 0, as in genes."""
    replaced = (*values[:position], value, *values[position + 1 :])
    return replaced if any(replaced) else ()


class TimedPrograms:
    """Timed programs of a target graph, and the best at every level."""

    def __init__(self, target_graph: TargetGraph) -> None:
        self.target_graph, self.compiler, self.best = target_graph, Compiler(target_graph), Best()
        self.cycles_by_genome: dict[Genome, dict[str, int]] = {}

    def cycles(self, genome: Genome) -> dict[str, int]:
        """Level -> cycles; {} if it does not fit."""
        if genome not in self.cycles_by_genome:
            plan = decode_all(self.target_graph, genome)
            program = plan if isinstance(plan, Infeasible) else self.compiler.compile(plan)
            levels = self.target_graph.machine.contention
            timings = {} if isinstance(program, Infeasible) else simulate_levels(program, self.target_graph.machine, list(levels))
            self.cycles_by_genome[genome] = {level: timing.cycles for level, timing in timings.items()}
        return self.cycles_by_genome[genome]

    def improve(self, genome: Genome, best: Best) -> bool:
        """Enter a genome into `best` at the levels where it is faster; returns whether there is one."""
        news = False
        for level, cycles in self.cycles(genome).items():
            if level not in best or cycles < best[level][0]:
                best[level], news = (cycles, genome), True
        return news

    def distinct_fastest(self, level: str, count: int) -> list[Genome]:
        """Fastest genomes with distinct divisions, block counts or residency of weights, best first."""
        first = dict[tuple[tuple[int, int, Weights], ...], Genome]()
        fitting = [(cycles[level], genome) for genome, cycles in self.cycles_by_genome.items() if level in cycles]
        for _, genome in sorted(fitting, key=lambda entry: entry[0]):
            first.setdefault(tuple([(gene.stop, gene.blocks, gene.weights) for gene in genome]), genome)
        return list(first.values())[:count]

    def climb(self, genome: Genome, level: str) -> None:
        """Climb to a genome that no change of a single gene makes faster."""
        cycles, previous = self.cycles(genome)[level], None
        while previous != genome:
            previous = genome
            for position, gene in enumerate(previous):
                for changed_gene in neighbours(self.target_graph, gene):
                    neighbour = (*previous[:position], changed_gene, *previous[position + 1 :])
                    took = self.cycles(neighbour).get(level, cycles)
                    if took < cycles:
                        cycles, genome = took, neighbour
        if cycles < self.best[level][0]:
            self.best[level] = cycles, genome


def search_exhaustively(target_graph: TargetGraph) -> TimedPrograms:
    """Try all divisions of a graph; for each, all plans of one segment with the best of the others, starting from the fastest of each
    alone.
    """
    programs, count = TimedPrograms(target_graph), len(target_graph.operators)
    plans = {span: genes(target_graph, *span) for span in itertools.combinations(range(count + 1), 2)}
    for cuts in itertools.product((False, True), repeat=count - 1):
        borders = [0, *(k + 1 for k, is_cut in enumerate(cuts) if is_cut), count]
        spans = list(itertools.pairwise(borders))
        if not all(plans[span] for span in spans):
            continue
        best = Best()
        programs.improve(tuple(plans[span][0] for span in spans), best)
        news = bool(best)
        while news:
            news = False
            for position, span in enumerate(spans):
                for genome in dict.fromkeys(genome for _, genome in best.values()):
                    for gene in plans[span]:
                        news |= programs.improve((*genome[:position], gene, *genome[position + 1 :]), best)
            news &= len(spans) > 1
        for level, (cycles, genome) in best.items():
            if level not in programs.best or cycles < programs.best[level][0]:
                programs.best[level] = cycles, genome
    for starts in (1, STARTS):
        for level in tuple(programs.best):
            for genome in programs.distinct_fastest(level, starts):
                programs.climb(genome, level)
    return programs


def seed_rows(seed: int) -> list[Row]:
    graph, words = random_graph(seed)
    target_graph = make_unit(graph, random_machine(seed), DataType.float16)
    bound, begin_s = Bound(target_graph), time.process_time()
    programs = search_exhaustively(target_graph)
    rows = []
    for level, (cycles, _) in programs.best.items():
        terms = bound.of(level)
        rows.append({
            "graph": seed, "what": words, "l1_kib": target_graph.machine.buffers_bytes.L1 // 1024, "level": level, "best": cycles,
            "bound": terms.cycles, "term": terms.term, "over_bound": cycles / terms.cycles, "programs": len(programs.cycles_by_genome),
            "cpu_s": round(time.process_time() - begin_s, 2),
        })  # fmt: skip
    return rows


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    table = []
    for level, level_rows in [*((level, level_rows) for (level,), level_rows in groups(rows, "level").items()), ("all", rows)]:
        ratios = [row["over_bound"] for row in level_rows]
        table.append(
            (level, len(ratios), *(f"{ratio:.3f}" for ratio in (min(ratios), median(ratios), geometric_mean(ratios), max(ratios))))
        )
    yield Table(("<level", "graphs", "least", "median", "mean", "most"), table)


def main(out: Out, graphs: Annotated[int, typer.Option(min=1, help="How many.")] = 200, as_json: Json = False) -> None:
    """The best of all plans over the bound, on small graphs."""
    rows: list[Row] = []
    for seed in range(graphs):
        rows += seed_rows(seed)
        write_rows(out / "bound.csv", rows)
    finish("bound", out, rows, show(rows), time.process_time(), as_json)
