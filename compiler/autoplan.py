"""Good plans in seconds, without a search: the segmentation with the fewest predicted cycles, corrected by simulating a few programs.

An estimate is too coarse for small changes of a segment.  One simulated program judges half of all segments at once: every second segment
is changed in the same way, and the simulator gives the cycles of each one next to its unchanged neighbours.  A change stays in those
segments where it saves cycles, if the whole program becomes faster too.  Then the next change is tried.

In this file, `cycles` are those of each segment in a simulated program, int64 [segments]."""

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

SegmentKey = Callable[[Gene], Hashable]  # equal keys: segments that differ only in their positions
_LONGEST_BEGINNING = 16  # operators: longest beginning of a first segment that is tried in blocks


def quick_plans(
    model: LoweredModel, predict: Callable[[TargetGraph], Predict] = estimate_predictor, progress: Progress = ignore_progress
) -> dict[str, Plan]:
    """Level -> plan of the whole model: the fastest at that level among the plans made for any level.

    predict: predictor for the target graph of a subgraph.  Raises `InfeasibleError` where no plan fits a level."""
    by_piece = {}
    for name, compiler in zip(model.names, model.compilers, strict=True):
        target_graph = ordered(compiler.target_graph, "depth")
        by_piece[name] = _choose_fastest(
            compiler, target_graph, quick_genomes(compiler, target_graph, predict(target_graph), progress=progress)
        )
    return {level: joined({name: plans[level] for name, plans in by_piece.items()}) for level in model.machine.contention}


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
    def simulate(candidate: Genome) -> NDArray[np.int64] | None:
        """Cycles of a genome's segments; None if it does not fit."""
        plan = decode_all(target_graph, candidate)
        if isinstance(plan, Infeasible):
            return None
        key = tuple([(segment.key, segment.same_end) for segment in plan.segments])
        if key not in cached_cycles:
            cycles = timer.cycles(plan)
            cached_cycles[key] = None if isinstance(cycles, Infeasible) else cycles
            progress(f"{level}: {len(cached_cycles):,} programs simulated")
        return cached_cycles[key]

    first_cycles = timer.cycles(_plan(target_graph, genome))
    if isinstance(first_cycles, Infeasible):
        raise InfeasibleError(f"{target_graph.machine.name}: {first_cycles}")
    structures = Structures(target_graph)

    def segment_key(gene: Gene) -> Hashable:
        return structures.structure(gene.start, gene.stop), gene[2:]

    # changes of single segments; then everything else without and with VECTOR's share
    separate = _apply_changes(target_graph, _SimulatedProgram(genome, first_cycles), segment_key, simulate)
    variants = list[tuple[int, tuple[Genome, ...]]]()
    for start_genome in dict.fromkeys((separate.genome, _share_with_vector(target_graph, separate, simulate).genome)):
        joined_program = _join_neighbours(target_graph, _replace_genes(separate, dict(enumerate(start_genome)), simulate), simulate)
        # joined segments: free tilings and all changes, where that is faster than the tilings of the parts
        free = {index: gene._replace(pinned=()) for index, gene in enumerate(joined_program.genome) if gene not in start_genome}
        changed = _apply_changes(target_graph, _replace_genes(joined_program, free, simulate), segment_key, simulate).genome
        new_genes = {index: new for index, (new, old) in enumerate(zip(changed, joined_program.genome, strict=True)) if new != old}
        joined_program = _keep_faster_genes(joined_program, new_genes, simulate)
        # a beginning in blocks, tensors on chip, VECTOR's shares, ends of L1
        holding = _hold_tensors(target_graph, _split_beginning(target_graph, joined_program, simulate), level, simulate)
        programs = [_SimulatedProgram(candidate, cycles) for candidate in holding if (cycles := simulate(candidate)) is not None]
        programs = [_try_same_ends(_share_with_vector(target_graph, program, simulate), simulate) for program in programs]
        variants.append((min(int(program.cycles.sum()) for program in programs), tuple([program.genome for program in programs])))
    return min(variants, key=lambda variant: variant[0])[1]


class _SimulatedProgram(NamedTuple):
    """A genome, and the cycles of each of its segments in the program."""

    genome: Genome
    cycles: NDArray[np.int64]


def _apply_changes(target_graph: TargetGraph, program: _SimulatedProgram, segment_key: SegmentKey, simulate: Measure) -> _SimulatedProgram:
    """Program in which every change of `CHANGES` is applied where it saves cycles.

    Segments at even positions are changed first, then those at odd positions: the neighbours of a changed segment are unchanged.  Among
    equal segments only the first is tried; the others follow it."""
    for change in CHANGES:
        for first in (0, 1):
            equal_segments = dict[Hashable, list[int]]()
            for index in range(first, len(program.genome), 2):
                equal_segments.setdefault(segment_key(program.genome[index]), []).append(index)
            new = {index: apply_if_fits(target_graph, program.genome[index], change) for index, *_ in equal_segments.values()}
            changes = {index: gene for index, gene in new.items() if gene != program.genome[index]}
            changed = _keep_faster_genes(program, changes, simulate)
            followers = {
                index: changed.genome[leader]._replace(start=changed.genome[index].start, stop=changed.genome[index].stop)
                for leader, *equal in equal_segments.values()
                if changed.genome[leader] != program.genome[leader]
                for index in equal
            }
            program = _keep_faster_genes(changed, followers, simulate)
    return program


def _keep_faster_genes(program: _SimulatedProgram, new: Mapping[int, Gene], simulate: Measure) -> _SimulatedProgram:
    """Fastest of three programs: the unchanged one, the one with all new genes, and the one with only those new genes that save cycles.

    The cycles of a segment count together with those of the next segment, whose loads start early.  Whole programs are compared, because
    segments that are faster one by one may be slower together."""
    changed = _replace_genes(program, new, simulate)
    saved = program.cycles - changed.cycles
    faster = {index: gene for index, gene in new.items() if saved[index : index + 2].sum() > 0}
    mixed = changed if len(faster) == len(new) else _replace_genes(program, faster, simulate)
    return min(program, mixed, changed, key=lambda candidate: int(candidate.cycles.sum()))


def _replace_genes(program: _SimulatedProgram, new: Mapping[int, Gene], simulate: Measure) -> _SimulatedProgram:
    """Program with new genes at the given positions; the unchanged program where they do not fit."""
    genome = tuple([new.get(index, gene) for index, gene in enumerate(program.genome)])
    cycles = simulate(genome) if new else None
    return program if cycles is None else _SimulatedProgram(genome, cycles)


def _join_neighbours(target_graph: TargetGraph, program: _SimulatedProgram, simulate: Measure) -> _SimulatedProgram:
    """Program with pairs of neighbours joined where the joined segment is faster: loads of one part then overlap work of the other.

    Only this step creates segments longer than `gene.EVERY_LENGTH`.  One program tries all pairs that begin at even positions, the next one
    all pairs at odd positions, until neither program has a faster pair."""
    failed = 0  # programs without a faster pair, one after the other: also the position of the first pair
    while failed < 2:
        genes, cycles = program
        pairs = {
            index: pair
            for index in range(failed, len(genes) - 1, 2)
            if (pair := _join(target_graph, genes[index], genes[index + 1])) is not None
        }
        candidate = _join_pairs(genes, pairs)
        new_cycles = simulate(candidate) if pairs else None
        faster = dict[int, Gene]()
        if new_cycles is not None:
            begins = [index for index in range(len(genes)) if index - 1 not in pairs]
            cycles_from = dict(zip(begins, new_cycles.tolist(), strict=True))
            faster = {index: pair for index, pair in pairs.items() if cycles_from[index] < cycles[index : index + 2].sum()}
        if len(faster) < len(pairs):
            candidate = _join_pairs(genes, faster)
            new_cycles = simulate(candidate) if faster else None
        if new_cycles is None or new_cycles.sum() >= cycles.sum():
            failed += 1
            continue
        program, failed = _SimulatedProgram(candidate, new_cycles), 0
    return program


def _join_pairs(genes: Genome, pairs: Mapping[int, Gene]) -> Genome:
    """Genome in which some pairs of neighbours are one gene.  pairs: position of the first gene of a pair -> joined gene."""
    return tuple([pairs.get(index, gene) for index, gene in enumerate(genes) if index - 1 not in pairs])


def _split_beginning(target_graph: TargetGraph, program: _SimulatedProgram, simulate: Measure) -> Genome:
    """Program whose first segment, of one block, is split into two where that is faster: its first operators get several blocks.

    A network that fits on chip as a whole needs no blocks.  But its first tensors are the largest, and a reader waits for the whole tensor.
    Tensors between the two new segments are held in L1, and the second one keeps its tilings.  VECTOR's shares are decided later."""
    gene, *later_genes = program.genome
    in_one_block = gene.blocks == gene.columns == gene.passes == gene.input_passes == 1 and not gene.on_vector
    plan = decode(target_graph, gene) if in_one_block else None
    if plan is None:
        return program.genome
    for stop in range(gene.start + 2, min(gene.stop, gene.start + _LONGEST_BEGINNING)):
        begin = Gene(gene.start, stop, blocks=2, cores=gene.cores, cached=-1, grant=gene.grant, held=(1 << stop) - 1)
        begin = four_alive(target_graph, begin)
        if begin.blocks > 2:
            rest_of_gene = gene._replace(start=stop, choices=(), pinned=pins_of(plan.tilings[stop - gene.start :]))
            candidate = (begin, rest_of_gene, *later_genes)
            cycles = simulate(candidate)
            if cycles is not None and cycles.sum() < program.cycles.sum():
                program = _SimulatedProgram(candidate, cycles)
    return program.genome


def _join(target_graph: TargetGraph, first: Gene, second: Gene) -> Gene | None:
    """Join two neighbours into one gene, with the tilings that they have; None if they cannot be joined, or the gene does not fit."""
    plans = [decode(target_graph, gene) for gene in (first, second)]
    unsplit = all(gene.blocks == gene.columns == gene.passes == gene.input_passes == 1 for gene in (first, second))
    same_split = unsplit and (first.cores, first.images) == (second.cores, second.images)
    if not same_split or any(plan is None for plan in plans):
        return None
    fitting = [plan for plan in plans if plan is not None]
    shares = [share.tiling for plan in fitting for share in plan.on_vector]
    pins = pins_of([*(tiling for plan in fitting for tiling in plan.tilings), *shares])
    planes = [planes_on_vector for gene in (first, second) for planes_on_vector in gene.on_vector or (0,) * (gene.stop - gene.start)]
    joined_gene = first._replace(
        stop=second.stop, choices=(), pinned=pins, on_vector=tuple(planes) if shares else (), overtake=first.overtake or second.overtake
    )
    return joined_gene if decode(target_graph, joined_gene) is not None else None


def _hold_tensors(target_graph: TargetGraph, genome: Genome, level: str, simulate: Measure) -> tuple[Genome, ...]:
    """Genomes with tensors held across segment borders, where that is faster; before them the genome with segments in passes, if it is
    faster still."""

    def expected(raws: Sequence[NDArray[np.float64]]) -> list[float]:
        predictions: list[float] = expected_cycles(np.stack(raws), target_graph.machine.contention[level]).tolist()
        return predictions

    persistent, passing = choose_by_measure(target_graph, genome, expected, simulate), choose_by_prediction(target_graph, genome, expected)
    if all(split.passes == gene.passes for split, gene in zip(passing, genome, strict=True)):
        return (persistent,)
    cycles, passing_cycles = simulate(persistent), simulate(passing)
    faster = cycles is not None and passing_cycles is not None and passing_cycles.sum() < cycles.sum()
    return (passing, persistent) if faster else (persistent,)


def _share_with_vector(target_graph: TargetGraph, program: _SimulatedProgram, simulate: Measure) -> _SimulatedProgram:
    """Program with the fastest share of each depthwise convolution on VECTOR.  One convolution of every segment is changed at a time, by
    eighths.

    A segment's own cycles decide, without those of the next segment: repeated changes of one segment would blur the next one's cycles."""
    most_divisible = max(sum(planes > 0 for planes in divisible(target_graph, gene.start, gene.stop)) for gene in program.genome)
    genes, cycles = program
    for place in range(most_divisible):
        for eighths in (2, 1, -1):
            faster = np.ones(len(genes), np.bool_)
            while faster.any():
                changed = tuple([apply_if_fits(target_graph, gene, partial(move_share, place, eighths)) for gene in genes])
                new_cycles = simulate(changed) if changed != genes else None
                if new_cycles is None:
                    break
                faster = new_cycles < cycles
                genes = tuple([new if better else old for new, old, better in zip(changed, genes, faster.tolist(), strict=True)])
                cycles = np.minimum(new_cycles, cycles)
    return min(program, _replace_genes(program, dict(enumerate(genes)), simulate), key=lambda candidate: int(candidate.cycles.sum()))


def _try_same_ends(program: _SimulatedProgram, simulate: Measure) -> _SimulatedProgram:
    """Program in which some segments use the same end of L1 as their predecessor.  All later segments swap ends too, so nothing else
    changes."""
    for first in (1, 2):
        new = {index: program.genome[index]._replace(same_end=True) for index in range(first, len(program.genome), 2)}
        program = _keep_faster_genes(program, new, simulate)
    return program


def _plan(target_graph: TargetGraph, genome: Genome) -> Plan:
    plan = decode_all(target_graph, genome)
    assert not isinstance(plan, Infeasible), "every gene fits"
    return plan


def _choose_fastest(compiler: Compiler, target_graph: TargetGraph, genomes: Mapping[str, Sequence[Genome]]) -> dict[str, Plan]:
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
