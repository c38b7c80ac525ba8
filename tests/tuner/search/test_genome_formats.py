"""Formats of genomes: 1,000 of them as JSON, and their names, keys, owners, columns, tasks and plans as digests, in a golden.

A genome's name and its keys say which shard it is in, and its task names it in every log: where code moves, none of them may change.
`pytest --update-golden` writes the golden anew, which is for a change of a format alone.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.model import ModelSpec
from compiler.plan.plan import LOOKAHEAD, Infeasible, Plan, SegmentPlan
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene, Genome, gene_json, gene_values, pins_of, recut
from compiler.space.mutators import MOVES, random_genome, repaired
from compiler.space.structural_hash import Structures
from compiler.target.level_limits import memory_grants
from compiler.target.target_graph import TargetGraph
from tests.conftest import GOLDEN_FOLDER
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Request
from tuner.search.hashing import genome_name, key_name
from tuner.search.packing import pack_genomes, unpack_genomes
from tuner.search.sharding import Shard
from tuner.zoo.load import open_network

GOLDEN = GOLDEN_FOLDER / "genomes.jsonl.xz"
UNITS = (  # network, machine, frames
    ("made:mobilenet_v1-small", "edge", 4), ("made:mobilenet_v1-small", "edge-shared", 4), ("made:mobilenet_v1-small", "ascend310", 4),
    ("made:bert_base-small", "edge-shared", 1), ("made:bert_base-small", "ascend310-l2", 2), ("made:mobilenet_v1-small", "ascend310p", 2),
)  # fmt: skip
GENOMES, LEAST, SHARDS = 1000, 20, 4
DEFAULTS = Gene(0, 1)


class Untimed:
    """A target that times nothing: a task follows from its plan alone."""

    def alone(self, plan: SegmentPlan, start: int) -> Infeasible:
        return Infeasible("untimed", "")

    def stage(self, segments: Sequence[tuple[SegmentPlan, int]]) -> Infeasible:
        return Infeasible("untimed", "")

    def program(self, plan: Plan) -> Infeasible:
        return Infeasible("untimed", "")


@cache
def target_graph(network: str, machine: str, frames: int) -> TargetGraph:
    return open_network(ModelSpec.named(Path(network), machine, "float16", {}, None, frames)).target_graph


def draw_genomes(u: TargetGraph, seed: int) -> Iterator[Genome]:
    """Programs a few moves apart that fit, each followed by one changed segment of it, which may not fit."""
    rng, moves = np.random.default_rng(seed), list(MOVES.values())

    def fits(gene: Gene) -> bool:
        return decode(u, gene) is not None

    genome = repaired(u, random_genome(u, rng), fits)
    assert genome is not None
    while True:
        for _ in range(3):
            child = moves[int(rng.integers(len(moves)))](u, genome, rng)
            genome = (child and repaired(u, child, fits)) or genome
        place = int(rng.integers(len(genome)))
        changed = vary_gene(u, genome[place], rng)
        if fits(changed):
            genome = (*genome[:place], changed, *genome[place + 1 :])
        yield genome
        yield (vary_gene(u, genome[int(rng.integers(len(genome)))], rng),)


def vary_gene(u: TargetGraph, gene: Gene, rng: np.random.Generator) -> Gene:
    """The gene with another value of a field that moves change rarely or never."""
    kind = int(rng.integers(5))
    if kind == 0:
        return gene._replace(grant=int(rng.integers(len(memory_grants(u.machine)))))
    if kind == 1:
        return gene._replace(lookahead=int(rng.choice([1, LOOKAHEAD, 1024])))
    if kind == 2:
        return recut(gene, columns=int(rng.integers(1, 4)))
    if kind == 3:
        return gene._replace(spread=not gene.spread)
    plan = decode(u, gene)
    return gene if plan is None else gene._replace(pinned=pins_of([*plan.tilings, *(share.tiling for share in plan.on_vector)]))


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@cache
def of_unit(place: int) -> tuple[Evaluator, Structures, list[Shard]]:
    u = target_graph(*UNITS[place])
    structures = Structures(u)
    shares = [Shard(structures, SHARDS, index) for index in range(SHARDS)]
    return Evaluator(u, tuple(u.machine.contention), Untimed()), structures, shares


def genome_row(place: int, genome: Genome) -> dict[str, Any]:
    """All that follows from a genome; lists and numbers that are long as digests.  place: of its target_graph in `UNITS`."""
    evaluator, structures, shares = of_unit(place)
    keys = [structures.key(gene) for gene in genome]
    kind = "program" if genome[-1].stop - genome[0].start == len(structures.target_graph.operators) else "segment"
    plan = decode_all(structures.target_graph, genome) if kind == "program" else evaluator.plan(genome[0])
    return {
        "unit": place,
        "genes": [gene_json(gene) for gene in genome],
        "kind": kind,
        "name": genome_name(genome),
        "structures": digest([structures.structure(gene.start, gene.stop) for gene in genome]),
        "keys": digest([(structure, gene_json(tail), key_name((structure, tail))) for structure, tail in keys]),
        "owners": "".join(str([share.holds(key) for share in shares].index(True)) for key in keys),
        "columns": digest(pack_genomes([genome]).values.to_pylist()),
        "task": evaluator.measure(Request(kind, genome)).task,
        "plan": None if plan is None or isinstance(plan, Infeasible) else digest(plan.model_dump(mode="json")),
    }


def write() -> None:
    rows = []
    for place, names in enumerate(UNITS):
        source = draw_genomes(target_graph(*names), place)
        rows += [genome_row(place, next(source)) for _ in range(GENOMES * place // len(UNITS), GENOMES * (place + 1) // len(UNITS))]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    GOLDEN.write_bytes(lzma.compress(text.encode(), preset=9))


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    if request.config.getoption("--update-golden"):
        write()
    return [json.loads(line) for line in lzma.decompress(GOLDEN.read_bytes()).decode().splitlines()]


def row_genome(expected: dict[str, Any]) -> Genome:
    return tuple(Gene(*gene_values(gene)) for gene in expected["genes"])


def test_genomes_are_what_they_were(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == GENOMES
    for expected in rows:
        assert genome_row(expected["unit"], row_genome(expected)) == expected


def test_genomes_travel_as_columns(rows: list[dict[str, Any]]) -> None:
    genomes = [row_genome(expected) for expected in rows]
    assert unpack_genomes(pack_genomes(genomes)) == genomes


def test_every_field_is_in_many_genomes(rows: list[dict[str, Any]]) -> None:
    count = Counter[str]()
    for expected in rows:
        count.update({name for gene in row_genome(expected) for name in Gene._fields if getattr(gene, name) != getattr(DEFAULTS, name)})
    assert {name: count[name] for name in Gene._fields if count[name] < LEAST} == {}
    assert min(Counter(expected["kind"] for expected in rows).values()) > GENOMES / 3
    assert sum(expected["plan"] is not None for expected in rows) > GENOMES / 2
