"""Whether two checkouts make the same: digests of plans, features, streams and times of many random genomes.

    python scripts/hash_programs.py [--networks light:squeezenet,...] [--machines edge,ascend310] [--genomes 30] [--genes 300] [--seed 0]

A line per network and machine: of mutated whole programs (plan, streams, every column of a measurement at every level) and of random
genes, most of which are segments (plan, raw features; `-` for those that do not fit).  For changes that should only be faster: run it
before and after, and compare the lines.
"""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import Annotated

import numpy as np
import typer

from compiler.cost.features import raw_features
from compiler.plan.plan import Infeasible
from compiler.space.decode import plan_of, realise
from compiler.space.gene import Gene
from compiler.unit.unit import Unit
from scripts.bench_evaluate import genes, mutations
from scripts.studies import network
from tuner.evaluate import Ask, Evaluator

NETWORKS = "light:squeezenet,light:resnet50,light:shufflenet"


def programs_digest(unit: Unit, count: int, seed: int) -> str:
    """Of whole programs, each a move away from the one before it."""
    evaluator, total = Evaluator(unit, tuple(unit.machine.contention), records=True), hashlib.sha256()
    for genome in islice(mutations(unit, seed), count):
        answer = evaluator.answer(Ask("program", genome))
        total.update(answer.payload.encode())
        plan = plan_of(unit, [segment for gene in genome if (segment := evaluator.plan(gene)) is not None])
        program = evaluator.compiler.compile(plan)
        if isinstance(program, Infeasible) or answer.values is None or answer.features is None:
            total.update(f"{program} {answer.error}".encode())
            continue
        total.update(plan.digest.encode())
        for array in (*program.streams, answer.values, answer.features):
            total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def genes_digest(unit: Unit, count: int, seed: int) -> str:
    """Of genes of all kinds: plans and features."""
    rng, total = np.random.default_rng([seed, 3]), hashlib.sha256()
    for gene in islice(genes(unit, seed, 3.3), count):
        plan = realise(unit, _varied(unit, gene, rng))
        if plan is None:
            total.update(b"-")
            continue
        total.update(plan.model_dump_json().encode())
        total.update(raw_features(unit, plan, gene.start).tobytes())
    return total.hexdigest()[:16]


def _varied(unit: Unit, gene: Gene, rng: np.random.Generator) -> Gene:
    """Windows, halos and cores beside what `genes` draws."""
    cores = tuple(range(1 + int(rng.integers(unit.machine.cores))))
    sliding, cached = bool(rng.integers(2)), int(rng.integers(1 << min(8, gene.stop - gene.start)))
    return gene._replace(window=int(rng.integers(-1, 4)), sliding=sliding, cached=cached, cores=cores)


def main(
    networks: Annotated[str, typer.Option(help="light:NAME, made:NAME or files, with commas.")] = NETWORKS,
    machines: Annotated[str, typer.Option(help="With commas.")] = "edge,ascend310",
    genomes: Annotated[int, typer.Option(min=0, help="Whole programs of each.")] = 30,
    gene_count: Annotated[int, typer.Option("--genes", min=0, help="Segments of each.")] = 300,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
) -> None:
    """Print the digests."""
    for name in networks.split(","):
        for machine in machines.split(","):
            unit = network(name, machine)
            found = programs_digest(unit, genomes, seed), genes_digest(unit, gene_count, seed)
            print(f"{name} {machine}: programs {found[0]}, genes {found[1]}", flush=True)


if __name__ == "__main__":
    typer.run(main)
