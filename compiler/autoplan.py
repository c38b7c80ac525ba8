"""Good plans in seconds, without a search: the segmentation with the fewest predicted cycles, corrected by simulating a few programs.

An estimate is too coarse for small changes of a segment.  One simulated program judges half of all segments at once: every second segment
is changed in the same way, and the simulator gives the cycles of each one next to its unchanged neighbours.  A change stays in those
segments where it saves cycles, if the whole program becomes faster too.  Then the next change is tried."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.build import measure_plans
from compiler.cost.features import expected_cycles
from compiler.model import LoweredModel
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, joined
from compiler.planner.persistent_choice import Measure, choose_by_measure, choose_by_prediction
from compiler.planner.segmentation import Predict, Progress, cheapest_segmentations, estimate_predictor, ignore_progress
from compiler.planner.tweaks import CHANGES, apply_if_fits, four_alive, move_share
from compiler.segment.engine_split import divisible
from compiler.segment_times import SegmentTimer
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene, Genome, pins_of
from compiler.space.operator_order import ordered
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import InfeasibleError
from simulator.npu.grant import Grant

Alike = Callable[[Gene], Hashable]  # equal for segments that differ only in their positions
_BEGUN = 16  # operators: longest beginning of a first segment that is tried in blocks


def quick_plans(
    opened: LoweredModel, predict: Callable[[TargetGraph], Predict] = estimate_predictor, progress: Progress = ignore_progress
) -> dict[str, Plan]:
    """Level -> plan of the whole model: the fastest at that level among the plans made for any level.

    predict: predictor for the target graph of a subgraph.  Raises `InfeasibleError` where no plan fits a level."""
    by_piece = {}
    for name, compiler in zip(opened.names, opened.compilers, strict=True):
        target_graph = ordered(compiler.target_graph, "depth")
        by_piece[name] = _fastest(compiler, target_graph, quick_genomes(compiler, target_graph, predict(target_graph), progress=progress))
    return {level: joined({name: plans[level] for name, plans in by_piece.items()}) for level in opened.machine.contention}


def quick_genomes(
    compiler: Compiler,
    target_graph: TargetGraph,
    predict: Predict,
    levels: Sequence[str] | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, tuple[Genome, ...]]:
    """Level -> genomes made for that level.

    The first genome is the fastest one at the level.  If it has segments in passes, the second genome is the one before passes were added:
    the second genome may be faster at another level.

    target_graph: the compiler's, ordered so that each branch is a run of operators.  levels: None for all.  Raises as `quick_plans` does.
    """
    groups: dict[Grant, list[str]] = {}
    for level in levels or target_graph.machine.contention:
        groups.setdefault(target_graph.machine.granted(level), []).append(level)
    genomes = {}
    for levels in groups.values():
        for level, genome in zip(levels, cheapest_segmentations(target_graph, levels, predict, progress), strict=True):
            genomes[level] = _correct_by_simulation(compiler, target_graph, genome, level, progress)
    return genomes


def _correct_by_simulation(
    compiler: Compiler, target_graph: TargetGraph, genome: Genome, level: str, progress: Progress
) -> tuple[Genome, ...]:
    """Genome in which segments are changed, neighbours are joined, and tensors are held, wherever that makes the program faster.

    A joined segment first has the tilings of its parts.  Then it is tried with free tilings, and all changes are tried on it once more;
    each segment keeps the faster version.  VECTOR's share of depthwise convolutions is decided last.  That share affects which neighbours
    should be joined, so everything is done twice, without the share and with it, and the faster program is returned."""

    timer = SegmentTimer(compiler, level)
    cached_cycles: dict[tuple[tuple[str, bool], ...], NDArray[np.int64] | None] = {}  # by plan keys: genes may give equal plans

    @cache
    def measured(tried: Genome) -> NDArray[np.int64] | None:
        plan = decode_all(target_graph, tried)
        if isinstance(plan, Infeasible):
            return None
        key = tuple([(segment.key, segment.same_end) for segment in plan.segments])
        if key not in cached_cycles:
            cycles = timer.cycles(plan)
            cached_cycles[key] = None if isinstance(cycles, Infeasible) else cycles
            progress(f"{level}: {len(cached_cycles):,} programs simulated")
        return cached_cycles[key]

    took = timer.cycles(_plan(target_graph, genome))
    if isinstance(took, Infeasible):
        raise InfeasibleError(f"{target_graph.machine.name}: {took}")
    structures = Structures(target_graph)

    def alike(gene: Gene) -> Hashable:
        return structures.structure(gene.start, gene.stop), gene[2:]

    parts = _changed(target_graph, _Timed(genome, took), alike, measured)
    variants = list[tuple[int, tuple[Genome, ...]]]()
    for begin in dict.fromkeys((parts.genome, _share_with_vector(target_graph, parts, measured).genome)):
        merged = _join_neighbours(target_graph, _replace_genes(parts, dict(enumerate(begin)), measured), measured)
        loose = {index: gene._replace(pinned=()) for index, gene in enumerate(merged.genome) if gene not in begin}
        changed = _changed(target_graph, _replace_genes(merged, loose, measured), alike, measured).genome
        new_genes = {index: new for index, (new, old) in enumerate(zip(changed, merged.genome, strict=True)) if new != old}
        merged = _with(merged, new_genes, measured)
        tried = _hold_tensors(target_graph, _begun_in_blocks(target_graph, merged, measured), level, measured)
        held = [_Timed(tried_genome, cycles) for tried_genome in tried if (cycles := measured(tried_genome)) is not None]
        ends = [_turned(_share_with_vector(target_graph, program, measured), measured) for program in held]
        variants.append((min(int(program.took.sum()) for program in ends), tuple([program.genome for program in ends])))
    return min(variants, key=lambda variant: variant[0])[1]


class _Timed(NamedTuple):
    """A genome, and the cycles of each of its segments in the program."""

    genome: Genome
    took: NDArray[np.int64]


def _changed(target_graph: TargetGraph, program: _Timed, alike: Alike, measured: Measure) -> _Timed:
    """Program in which every change of `CHANGES` is applied where it saves cycles.

    Segments at even positions are changed first, then those at odd positions: the neighbours of a changed segment are unchanged.  Among
    equal segments only the first is tried; the others follow it."""
    for change in CHANGES:
        for first in (0, 1):
            places = dict[Hashable, list[int]]()
            for index in range(first, len(program.genome), 2):
                places.setdefault(alike(program.genome[index]), []).append(index)
            new = {index: apply_if_fits(target_graph, program.genome[index], change) for index, *_ in places.values()}
            one = _with(program, {index: gene for index, gene in new.items() if gene != program.genome[index]}, measured)
            won = [same for same in places.values() if one.genome[same[0]] != program.genome[same[0]]]
            same_changes = {
                index: one.genome[same[0]]._replace(start=one.genome[index].start, stop=one.genome[index].stop)
                for same in won
                for index in same[1:]
            }
            program = _with(one, same_changes, measured)
    return program


def _with(program: _Timed, new: Mapping[int, Gene], measured: Measure) -> _Timed:
    """Fastest of three programs: the unchanged one, the one with all new genes, and the one with only those new genes that save cycles.

    The cycles of a segment count together with those of the next segment, whose loads start early.  Whole programs are compared, because
    segments that are faster one by one may be slower together."""
    tried = _replace_genes(program, new, measured)
    less = program.took - tried.took
    faster = {index: gene for index, gene in new.items() if less[index : index + 2].sum() > 0}
    mixed = tried if len(faster) == len(new) else _replace_genes(program, faster, measured)
    return min(program, mixed, tried, key=lambda candidate: int(candidate.took.sum()))


def _replace_genes(program: _Timed, new: Mapping[int, Gene], measured: Measure) -> _Timed:
    """Program with new genes at the given positions; the unchanged program where they do not fit."""
    genome = tuple([new.get(index, gene) for index, gene in enumerate(program.genome)])
    took = measured(genome) if new else None
    return program if took is None else _Timed(genome, took)


def _join_neighbours(target_graph: TargetGraph, program: _Timed, measured: Measure) -> _Timed:
    """Program with pairs of neighbours joined where the joined segment is faster: loads of one part then overlap work of the other.

    Only this step creates segments longer than `gene.EVERY_LENGTH`.  One program tries all pairs that begin at even positions, the next one
    all pairs at odd positions, until neither program has a faster pair."""
    failed = 0
    while failed < 2:
        genes, took = program
        both = {
            index: pair
            for index in range(failed, len(genes) - 1, 2)
            if (pair := _join(target_graph, genes[index], genes[index + 1])) is not None
        }
        tried = _join_pairs(genes, both)
        now = measured(tried) if both else None
        faster = dict[int, Gene]()
        if now is not None:
            begins = [index for index in range(len(genes)) if index - 1 not in both]
            cycles = dict(zip(begins, now.tolist(), strict=True))
            faster = {index: pair for index, pair in both.items() if cycles[index] < took[index : index + 2].sum()}
        if len(faster) < len(both):
            tried = _join_pairs(genes, faster)
            now = measured(tried) if faster else None
        if now is None or now.sum() >= took.sum():
            failed += 1
            continue
        program, failed = _Timed(tried, now), 0
    return program


def _join_pairs(genes: Genome, both: Mapping[int, Gene]) -> Genome:
    """Genome in which some pairs of neighbours are one gene.  both: position of the first gene of a pair -> joined gene."""
    return tuple([both.get(index, gene) for index, gene in enumerate(genes) if index - 1 not in both])


def _begun_in_blocks(target_graph: TargetGraph, program: _Timed, measured: Measure) -> Genome:
    """Program whose first segment, of one block, is split into two where that is faster: its first operators get several blocks.

    A network that fits on chip as a whole needs no blocks.  But its first tensors are the largest, and a reader waits for the whole tensor.
    Tensors between the two new segments are held in L1, and the second one keeps its tilings.  VECTOR's shares are decided later."""
    one, *later_genes = program.genome
    plan = decode(target_graph, one) if one.blocks == one.columns == one.passes == one.input_passes == 1 and not one.on_vector else None
    if plan is None:
        return program.genome
    for stop in range(one.start + 2, min(one.stop, one.start + _BEGUN)):
        first = four_alive(target_graph, Gene(one.start, stop, blocks=2, cores=one.cores, cached=-1, grant=one.grant, held=(1 << stop) - 1))
        if first.blocks > 2:
            tried = (first, one._replace(start=stop, choices=(), pinned=pins_of(plan.tilings[stop - one.start :])), *later_genes)
            took = measured(tried)
            if took is not None and took.sum() < program.took.sum():
                program = _Timed(tried, took)
    return program.genome


def _join(target_graph: TargetGraph, one: Gene, following: Gene) -> Gene | None:
    """Join two neighbours into one gene, with the tilings that they have; None if they cannot be joined, or the gene does not fit."""
    plans = [decode(target_graph, gene) for gene in (one, following)]
    unsplit = all(gene.blocks == gene.columns == gene.passes == gene.input_passes == 1 for gene in (one, following))
    alike = unsplit and (one.cores, one.images) == (following.cores, following.images)
    if not alike or any(plan is None for plan in plans):
        return None
    fitting = [plan for plan in plans if plan is not None]
    shares = [share.tiling for plan in fitting for share in plan.on_vector]
    pins = pins_of([*(tiling for plan in fitting for tiling in plan.tilings), *shares])
    planes = [planes_on_vector for gene in (one, following) for planes_on_vector in gene.on_vector or (0,) * (gene.stop - gene.start)]
    both = one._replace(
        stop=following.stop, choices=(), pinned=pins, on_vector=tuple(planes) if shares else (), overtake=one.overtake or following.overtake
    )
    return both if decode(target_graph, both) is not None else None


def _hold_tensors(target_graph: TargetGraph, genome: Genome, level: str, measured: Measure) -> tuple[Genome, ...]:
    """Genomes with tensors held across segment borders, where that is faster; before them the genome with segments in passes, if it is
    faster still."""

    def expected(raws: Sequence[NDArray[np.float64]]) -> list[float]:
        cycles: list[float] = expected_cycles(np.stack(raws), target_graph.machine.contention[level]).tolist()
        return cycles

    persistent, passing = choose_by_measure(target_graph, genome, expected, measured), choose_by_prediction(target_graph, genome, expected)
    if all(split.passes == gene.passes for split, gene in zip(passing, genome, strict=True)):
        return (persistent,)
    took, then = measured(persistent), measured(passing)
    faster = took is not None and then is not None and then.sum() < took.sum()
    return (passing, persistent) if faster else (persistent,)


def _share_with_vector(target_graph: TargetGraph, program: _Timed, measured: Measure) -> _Timed:
    """Program with the fastest share of each depthwise convolution on VECTOR.  One convolution of every segment is changed at a time, by
    eighths.

    A segment's own cycles decide, without those of the next segment: repeated changes of one segment would blur the next one's cycles."""
    most_divisible = max(sum(planes > 0 for planes in divisible(target_graph, gene.start, gene.stop)) for gene in program.genome)
    genes, took = program
    for place in range(most_divisible):
        for eighths in (2, 1, -1):
            faster = np.ones(len(genes), np.bool_)
            while faster.any():
                changed = tuple([apply_if_fits(target_graph, gene, partial(move_share, place, eighths)) for gene in genes])
                now = measured(changed) if changed != genes else None
                if now is None:
                    break
                faster = now < took
                genes = tuple([new if better else old for new, old, better in zip(changed, genes, faster.tolist(), strict=True)])
                took = np.minimum(now, took)
    return min(program, _replace_genes(program, dict(enumerate(genes)), measured), key=lambda candidate: int(candidate.took.sum()))


def _turned(program: _Timed, measured: Measure) -> _Timed:
    """Program in which some segments use the same end of L1 as their predecessor.  All later segments swap ends too, so nothing else
    changes."""
    for first in (1, 2):
        new = {index: program.genome[index]._replace(same_end=True) for index in range(first, len(program.genome), 2)}
        program = _with(program, new, measured)
    return program


def _plan(target_graph: TargetGraph, genome: Genome) -> Plan:
    plan = decode_all(target_graph, genome)
    assert not isinstance(plan, Infeasible), "every gene fits"
    return plan


def _fastest(compiler: Compiler, target_graph: TargetGraph, genomes: Mapping[str, Sequence[Genome]]) -> dict[str, Plan]:
    """Level -> the fastest of the plans at that level; the first one of equally fast plans."""
    fastest: dict[str, tuple[int, Plan]] = {}
    for number in range(max(map(len, genomes.values()))):
        measured = measure_plans(
            compiler, {level: _plan(target_graph, candidates[min(number, len(candidates) - 1)]) for level, candidates in genomes.items()}
        )
        for level in measured:
            plans = [(m.timings[level].cycles, m.plan) for m in measured.values() if level in m.timings]
            fastest[level] = min([fastest[level], *plans] if number else plans, key=lambda cycles_and_plan: cycles_and_plan[0])
    return {level: plan for level, (_, plan) in fastest.items()}
