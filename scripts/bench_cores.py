"""Cost of an evaluation per instruction, of one product on all cores of a machine beside one core of it.

    python scripts/bench_cores.py [--machine ascend910b] [--size 3072] [--programs 24] [--seed 0] [--json]

Programs are drawn: blocks and tilings at random, on all cores in one of their grids.  Each is planned, lowered, scheduled and timed at all
levels, by one evaluator for each number of cores, in turns.  Times are CPU seconds of one thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from compiler.model import ModelSpec, lower_model  # noqa: E402
from compiler.plan.plan import Infeasible  # noqa: E402
from compiler.space.decode import decode, plan_of  # noqa: E402
from compiler.space.gene import Gene  # noqa: E402
from compiler.space.knobs import part_counts  # noqa: E402
from scripts.bench_evaluate import genes  # noqa: E402
from scripts.compare_gemm import product_model  # noqa: E402
from simulator.npu.errors import BadInputError  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from tuner.measure.evaluator import Evaluator, build_evaluator  # noqa: E402
from tuner.measure.npu_target import Npu  # noqa: E402
from tuner.measure.request import Request  # noqa: E402

_WARM = 4  # programs before the clock starts, at most half of them


class Bench:
    """Programs of a product on one machine, and what they cost."""

    def __init__(self, machine: str, size: int) -> None:
        described = load_machine(machine)
        spec = ModelSpec.named(Path("product.onnx"), described, "float16", {}, None)
        self.target_graph = lower_model(spec, product_model(size, size, size)).target_graph
        self.levels = tuple(described.contention)
        self.evaluator: Evaluator = build_evaluator(self.target_graph, self.levels)
        self.seconds, self.instructions = list[float](), list[int]()

    def drawn_genes(self, seed: int) -> Iterator[Gene]:
        """Fitting genes on all cores, in any grid, with different plans: equal ones are simulated once."""
        plans = set[str]()
        cores, rng = self.target_graph.machine.cores, np.random.default_rng(seed)
        grids = [(1, 0)] if cores == 1 else [(1, 0), *((parts, parts) for parts in part_counts(cores)), (cores, 0)]
        for gene in genes(self.target_graph, seed, 1.0):
            channels, parts = grids[int(rng.integers(len(grids)))]
            if gene.blocks >= cores // channels:
                gene = gene._replace(cores=tuple(range(cores)), split="channels" if channels > 1 else "rows", parts=parts)
                plan = decode(self.target_graph, gene)
                if plan is not None and plan.key not in plans:
                    plans.add(plan.key)
                    yield gene

    def measure(self, gene: Gene) -> None:
        begin = time.thread_time()
        measurement = self.evaluator.measure(Request("program", (gene,)))
        seconds = time.thread_time() - begin
        if measurement.status == "ok":
            self.seconds.append(seconds)
            self.instructions.append(self._instructions(gene))

    def _instructions(self, gene: Gene) -> int:
        """Instructions of a gene's program, as the evaluator has just lowered it."""
        plan, target = decode(self.target_graph, gene), self.evaluator.target
        assert plan is not None
        assert isinstance(target, Npu)
        parts = target.compiler.parts(plan_of(self.target_graph, [plan]))
        return 0 if isinstance(parts, Infeasible) else sum(part.lowered.records for part in parts)

    def report(self) -> dict[str, Any]:
        warm = min(_WARM, len(self.seconds) // 2)
        seconds, instructions = self.seconds[warm:], self.instructions[warm:]
        if not seconds:
            raise BadInputError(f"--size: no program of it fits on {self.target_graph.machine.name}; accepted: another size")
        return {
            "programs": len(seconds),
            "instructions": sum(instructions) // len(instructions),
            "ms": 1e3 * median(seconds),
            "us_per_instruction": 1e6 * sum(seconds) / sum(instructions),
        }


def main(
    machine: Annotated[str, typer.Option(help="The machine, with overrides.")] = "ascend910b",
    size: Annotated[int, typer.Option(min=64, help="Side of the product.")] = 3072,
    programs: Annotated[int, typer.Option(min=2, help="Number of programs.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the programs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Cost of an evaluation per instruction, on all cores beside one."""
    joint = "," if ":" in machine else ":"
    every, one = Bench(machine, size), Bench(f"{machine}{joint}cores=1", size)
    for pair in islice(zip(every.drawn_genes(seed), one.drawn_genes(seed), strict=False), programs):
        for bench, gene in zip((every, one), pair, strict=True):
            bench.measure(gene)
    report = {"machine": machine, "size": size, "all_cores": every.report(), "one_core": one.report()}
    ratio = report["all_cores"]["us_per_instruction"] / report["one_core"]["us_per_instruction"]
    if as_json:
        print(json.dumps({**report, "ratio": ratio}))
        return
    for name in ("all_cores", "one_core"):
        r = report[name]
        rate = f"{r['us_per_instruction']:.2f} us per instruction"
        print(f"{name}: {r['programs']} programs of {r['instructions']:,} instructions, {r['ms']:.1f} ms each, {rate}")
    print(f"per instruction {ratio:.2f} times one core's")


if __name__ == "__main__":
    typer.run(main)
