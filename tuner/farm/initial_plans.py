"""Plans that a search begins with: the user's, another run's, and those that `compile` would choose.

Given plans are checked as `compile` checks them, and measured before all proposals, like champions of a warm start.  Their digests are part
of the run's identity; their genomes are in its checkpoint, so it can be resumed even if the files have changed.

Plans of `compile` follow from model and machine.  They are made before the first job, from a dozen simulated programs per level.  That
takes a fifth of a second for a small network and several seconds for a large one; inside a job it would look like a hang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from compiler.autoplan import quick_genomes
from compiler.build import compile_plan, plans_of_pieces
from compiler.model import LoweredModel
from compiler.pipeline import Compiler
from compiler.plan.plan import Plan
from compiler.planner.segmentation import estimate_predictor
from compiler.space.encode import genome_of
from compiler.space.gene import Genome
from compiler.space.initial import everywhere
from compiler.space.operator_order import ORDERS, Order, ordered
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError, InfeasibleError
from tuner.config import NPU, TuneConfig
from tuner.platform.files import AnyPath
from tuner.runs.folder import IDENTITY, initial_lines

_PREDICTION = "prediction"


class Start(NamedTuple):
    """Initial plans.  recorded: entry of `run.json`, digests of plans.  genomes: file -> genome of every subgraph; {} if a resumed run has
    them."""

    recorded: tuple[str, ...] = ()
    genomes: Mapping[str, tuple[Genome, ...]] = MappingProxyType({})

    def genomes_of_piece(self, piece: int) -> list[Genome] | None:
        """Initial genomes of the search of a piece; None if a resumed run does not name its plans again."""
        return None if len(self.genomes) < len(self.recorded) else [genomes[piece] for genomes in self.genomes.values()]

    def lines(self) -> Iterator[str]:
        """Lines about the initial plans."""
        for source, genomes in self.genomes.items():
            pinned = [bool(gene.pinned) for genome in genomes for gene in genome]
            yield f"start: {source}: {len(pinned)} segments, {sum(pinned)} with tilings that no rank names; it is measured first"


def read_start(paths: Sequence[Path], lowered: LoweredModel, order: Order, out: AnyPath | Path, resume: bool) -> Start:
    """Genomes of plan files, each for the whole model, in the operator order of the search; the first one of equal plans.

    Raises `BadInputError` (no plan, plan of another model or in another order, other plans than the resumed run began with) and
    `InfeasibleError`, as `compile` does.
    """
    plans: dict[str, tuple[str, Plan]] = {}
    for path in paths:
        plan = Plan.load(path)
        plans.setdefault(plan.digest, (str(path), plan))
    sources, genomes = tuple(plans), {}
    for source, plan in plans.values():
        pieces = zip(lowered.compilers, plans_of_pieces(lowered, plan, source), strict=True)
        genomes[source] = tuple(_genome(compiler, piece, source, order) for compiler, piece in pieces)
    if not (resume and (out / IDENTITY).is_file()):
        return Start(sources, genomes)
    began = initial_lines(out, "start")
    if sources and sources != began:
        short = [", ".join(digest[:8] for digest in digests) or "none" for digests in (began, sources)]
        raise BadInputError(f"--start: {out} began with plans {short[0]}, not {short[1]}; leave --start out, or give another --out")
    return Start(began, genomes)


def compiled_genomes(target_graph: TargetGraph, levels: Sequence[str], config: TuneConfig) -> dict[Genome, str]:
    """Candidates of `compile` at every level -> `prediction`, in the operator order of the search.  On all cores, unless placement uses
    fewer.

    None if another target times plans, without segmentation, and if no plan fits a level (measuring layer by layer gives the better error).
    """
    if config.target.name != NPU or not config.use.segmentations:
        return {}
    try:
        genomes = quick_genomes(Compiler(target_graph), target_graph, estimate_predictor(target_graph), levels)
    except InfeasibleError:
        return {}
    if config.use.placement or not config.use.cores:
        return dict.fromkeys((genome for level_genomes in genomes.values() for genome in level_genomes), _PREDICTION)
    cores = {level: target_graph.machine.granted(level).cores for level in genomes}
    wide = (
        tuple(everywhere(target_graph, gene, cores[level]) for gene in genome)
        for level, level_genomes in genomes.items()
        for genome in level_genomes
    )
    return dict.fromkeys(wide, _PREDICTION)


def _genome(compiler: Compiler, plan: Plan, source: str, order: Order) -> Genome:
    compile_plan(compiler, plan, source)
    target_graph = ordered(compiler.target_graph, order)
    names = [name for segment in plan.segments for name in segment.operators]
    index = next((k for k, spec in enumerate(target_graph.operators) if spec.name != names[k]), None)
    if index is not None:
        difference = f"operator {index} is {names[index]!r}, the search has {target_graph.operators[index].name!r} there"
        raise BadInputError(
            f"{source}: {difference} (search.order: {order}); expected its order, or --set search.order={_other_order(order)}"
        )
    genome = genome_of(target_graph, plan)
    assert genome is not None, "what compiles has a gene"
    return genome


def _other_order(order: Order) -> Order:
    return next(candidate for candidate in ORDERS if candidate != order)
