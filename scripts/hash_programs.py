"""Digests to compare two checkouts: plans, tasks, features, streams, times and compiled files of many random genomes.

    python scripts/hash_programs.py [--whole] [--networks light:squeezenet,...] [--machines edge,...] [--dtypes float16,...]
                                    [--genes N] [--genomes N] [--seed S] [--texts]

Prints a line per network, machine and data type, or the reason why it does not compile.  Inputs are random genes, mostly of segments, and
whole programs, each one mutation away from the previous one.  Digests:

plans     the plan of a gene
tasks     digest of a measurement in a log, or the reason why there is none
features  raw inputs of a model
streams   every record of every core
times     every column of a measurement at every level
file      the compiled ONNX with a program per level: layer by layer, then random ones

--texts adds digests of the text of every stage (`compiler.compiler_stages`), layer by layer.

For a change that should only make code faster or move it: run before and after, and compare the lines.  A minute or two; --whole takes ten
times as long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from compiler.build import containers_of, default_plans, measure, package
from compiler.compiler_stages import DUMPED
from compiler.dump.texts import texts_of
from compiler.model import LoweredModel
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, joined
from compiler.space.decode import plan_of
from scripts.bench_evaluate import genes, mutations, varied
from scripts.studies import in_search_order, network_list, opened
from simulator.npu.errors import BadInputError, InfeasibleError, UnsupportedError
from simulator.npu.parts import DataType
from tuner.measure.evaluator import Evaluator
from tuner.measure.npu_target import Npu
from tuner.measure.request import Request

PARTS = ("plans", "tasks", "features", "streams", "times", "file")
SMALL = ("bert_base", "efficientnet_b0", "inception_v3", "mobilenet_v1", "mobilenet_v2", "nasnet_mobile", "randwire", "vit_b16")
EVERYDAY = ("light:squeezenet", "light:shufflenet", "light:inception_v1", *(f"made:{name}-small" for name in SMALL))
LARGER = (
    *("light:alexnet", "light:densenet121", "light:inception_v2", "light:resnet50", "light:vgg19", "light:zfnet512"),
    *("made:efficientnet_b0", "made:inception_v3", "made:mobilenet_v1", "made:mobilenet_v2"),
    *("made:bert_base,layers=1,vocabulary=1000", "made:vit_b16,layers=1"),  # real widths; further layers are alike
)
MACHINES = "edge,ascend310,tpu-like,nvdla-large"


class Digests:
    """Digest of each part, over its values in order."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._parts = {part: hashlib.sha256() for part in parts}

    def add(self, part: str, *values: str | bytes | NDArray[Any] | None) -> None:
        """Add values to a part; None counts as well."""
        for value in values:
            data = _value_bytes(value)
            self._parts[part].update(b"-" if data is None else len(data).to_bytes(8, "little") + data)

    def __str__(self) -> str:
        return ", ".join(f"{part} {digest.hexdigest()[:12]}" for part, digest in self._parts.items())


def _value_bytes(value: str | bytes | NDArray[Any] | None) -> bytes | None:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return value.encode() if isinstance(value, str) else value


def digests(network: str, machine: str, dtype: str, gene_count: int, genomes: int, seed: int, texts: bool = False) -> str:
    """Line of a network, machine and data type.  Raises `BadInputError` for unknown names."""
    try:
        lowered = opened(network, machine, dtype)
        plans = [default_plans(lowered)]
    except (InfeasibleError, UnsupportedError) as error:
        return f"does not compile: {error}"
    part_digests, plans_by_piece = Digests((*PARTS, *DUMPED) if texts else PARTS), list[list[Plan]]()
    for target_graph in map(in_search_order, lowered.target_graphs):
        levels, rng = tuple(target_graph.machine.contention), np.random.default_rng([seed, 3])
        target = Npu(target_graph, levels, records=True)
        evaluator = Evaluator(target_graph, levels, target)
        for gene in islice(genes(target_graph, seed, 3.3), gene_count):
            add_genome(part_digests, evaluator, target.compiler, Request("segment", (varied(target_graph, gene, rng),)))
        programs = [
            add_genome(part_digests, evaluator, target.compiler, Request("program", genome))
            for genome in islice(mutations(target_graph, seed), genomes)
        ]
        plans_by_piece.append([plan for plan in programs if plan is not None])
    plans += [joined(dict(zip(lowered.names, piece_plans, strict=True))) for piece_plans in zip(*plans_by_piece, strict=False)]
    part_digests.add("file", file_digest(lowered, plans))
    for text in texts_of(lowered, {"all": plans[0]}, {}, DUMPED) if texts else ():
        part_digests.add(text.stage, *text.lines)
    return str(part_digests)


def add_genome(part_digests: Digests, evaluator: Evaluator, compiler: Compiler, request: Request) -> Plan | None:
    """Add all results of a genome; returns its plan if it fits."""
    measurement = evaluator.measure(request)
    plans = [evaluator.plan(gene) for gene in request.genome]
    part_digests.add("plans", *(None if plan is None else plan.model_dump_json() for plan in plans))
    part_digests.add("tasks", measurement.payload, measurement.error)
    part_digests.add("features", measurement.features)
    part_digests.add("times", measurement.values)
    if measurement.values is None:
        return None
    segments = [(plan, gene.start) for plan, gene in zip(plans, request.genome, strict=True) if plan is not None]
    parts = compiler.some(segments) if request.kind == "program" else compiler.alone(*segments[0])
    assert not isinstance(parts, Infeasible)
    part_digests.add("streams", *compiler.link(parts).streams)
    return plan_of(evaluator.target_graph, [plan for plan, _ in segments])


def file_digest(lowered: LoweredModel, plans: Sequence[Plan]) -> bytes:
    """SHA-256 of the file with one of the plans per level."""
    by_level = {level: plans[i % len(plans)] for i, level in enumerate(lowered.machine.contention)}
    with TemporaryDirectory(prefix="tilefarm-hash-") as folder:
        path = Path(folder) / "out.onnx"
        package(lowered, containers_of(lowered, measure(lowered, by_level)), path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()


def main(
    whole: Annotated[bool, typer.Option("--whole", help="All networks and data types, not the everyday ones.")] = False,
    networks: Annotated[str, typer.Option(metavar="A,B", help="light:NAME, made:NAME or files instead of those.")] = "",
    machines: Annotated[str, typer.Option(metavar="A,B")] = MACHINES,
    dtypes: Annotated[str, typer.Option(metavar="A,B", help="float16 unless --whole, which has float32 as well.")] = "",
    gene_count: Annotated[int, typer.Option("--genes", metavar="N", min=0, help="Random genes of each.")] = 500,
    genomes: Annotated[int, typer.Option(metavar="N", min=0, help="Whole programs of each.")] = 10,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    texts: Annotated[bool, typer.Option("--texts", help="Also the text of every stage, layer by layer.")] = False,
) -> None:
    """Digests of random genomes, a line per network, machine and data type: equal for equivalent checkouts."""
    names = network_list(networks or ",".join((*EVERYDAY, *LARGER) if whole else EVERYDAY))
    types = (dtypes or ("float16,float32" if whole else "float16")).split(",")
    if unknown := set(types) - set(DataType.__members__):
        raise typer.BadParameter(f"--dtypes {min(unknown)}: expected some of {', '.join(DataType.__members__)}")
    for network, machine, dtype in product(names, machines.split(","), types):
        try:
            program_digests = digests(network, machine, dtype, gene_count, genomes, seed, texts)
        except BadInputError as error:
            raise typer.BadParameter(str(error)) from None
        print(f"{network} {machine} {dtype}: {program_digests}", flush=True)


if __name__ == "__main__":
    typer.run(main)
