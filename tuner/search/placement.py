"""Placement of a program's segments on cores, from the table's measurements by number of cores.

The input is a cut of the operators: of a segmentation or a good program.  Its segments become a graph of work (`compiler.placement`),
and list schedules and stages assign cores to each of them.  Like segmentations, they only propose programs; measurements judge.

Segments wait for their inputs by flags; there are no barriers between stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from compiler.placement.clusters import Quotient, contract, linear_clusters
from compiler.placement.dag import Dag
from compiler.placement.list_schedule import Widths, allocate_widths, list_schedule
from compiler.placement.port_model import Wiring, core_masks, replay_cycles
from compiler.placement.segment_graph import Cores, assign_cores, segment_edges, segment_wiring
from compiler.placement.stages import Pruning, Stage, StagePartition, States, enumerate_states, partition
from compiler.space.gene import Gene, Genome, widths
from simulator.npu.cycles import port_units
from simulator.npu.level import SHARE_UNIT
from tuner.config import PlacementSettings
from tuner.measure.request import PLACEMENT, Request
from tuner.search.annealer import Annealer
from tuner.search.ask_tell import Asking, translate
from tuner.search.table import SegmentTable

Cut = Sequence[tuple[int, int]]
_STEPS = 16  # average steps from a state before a search for stages is given up
_NEVER = 1 << 60  # cycles of a stage that does not fit
_DOUBT = 0.05  # relative error of the estimate: 0 to 2% where all cores run one segment, more where the port is the limit


def segment_cut(genome: Genome) -> tuple[tuple[int, int], ...]:
    """Starts and ends of a genome's segments."""
    return tuple((gene.start, gene.stop) for gene in genome)


def runs_in_sequence(genome: Genome) -> bool:
    """Whether all genes have a common core, so that all segments run in sequence."""
    return bool(set[int].intersection(*(set(gene.cores) for gene in genome)))


@dataclass(frozen=True)
class CutGraph:
    """Cut with measurements of its segments at a level: per number of cores the best gene, its cycles, and its DDR bytes.

    port: bytes per cycle of DDR.  delay: cycles of a flag between cores.
    """

    genes: tuple[dict[int, Gene], ...]
    times: tuple[Widths, ...]
    moved: tuple[dict[int, int], ...]
    edges: tuple[tuple[int, int], ...]
    wiring: Wiring
    cores: int
    port: float
    delay: int

    @cached_property
    def dag(self) -> Dag:
        """Dag with times on the fewest measured cores."""
        return Dag.of([times[min(times)] for times in self.times], self.edges)

    def genome(self, core_sets: Sequence[Cores]) -> Genome:
        """Genome of the best genes for the cores of each segment."""
        return tuple(genes[len(cores)]._replace(cores=cores) for genes, cores in zip(self.genes, core_sets, strict=True))

    def expected(self, core_sets: Sequence[Cores]) -> float:
        """Expected cycles of the program."""
        times = np.array([times[len(cores)] for times, cores in zip(self.times, core_sets, strict=True)], np.float64)
        moved = np.array([moved[len(cores)] for moved, cores in zip(self.moved, core_sets, strict=True)], np.float64)
        return replay_cycles(times, moved, self.wiring, core_masks(core_sets), self.port, self.delay)


@dataclass(frozen=True)
class StagedProgram:
    """Program in stages of clusters of segments, as placed genomes.

    stages: genes of each, in execution order.  genome: all of them.
    schedules: list schedules with the same number of cores for each segment.
    clusters: number of nodes of the partitioned graph.
    """

    partition: StagePartition
    clusters: int
    stages: tuple[Genome, ...]
    genome: Genome
    schedules: tuple[Genome, ...]


class Placer:
    """Placement of programs of one target graph; remembers the measured stages."""

    def __init__(self, table: SegmentTable, levels: Sequence[str], config: PlacementSettings) -> None:
        self.table, self.config = table, config
        self.target_graph = table.structures.target_graph
        machine = self.target_graph.machine
        self.cores, self.delay = [machine.granted(level).cores for level in levels], machine.flags.between_cores_cycles
        self.ports = [port_units(machine, machine.contention[level].share_units) / SHARE_UNIT for level in levels]
        self._predicted: dict[object, NDArray[np.int64] | None] = {}

    def expected(self, genome: Genome, cycles: NDArray[np.float64], border: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected cycles of a program, float64 [levels].  cycles: float64 [segments, levels], each alone.  border: savings of one
        overlap."""
        wiring = segment_wiring(self.target_graph, [gene.start for gene in genome])
        moved = np.array([self.table.moved(gene) for gene in genome], np.float64)
        cores = core_masks([gene.cores for gene in genome])
        prices = np.maximum(cycles - border, 0.5 * cycles)
        return np.array(
            [replay_cycles(prices[:, level].copy(), moved, wiring, cores, port, self.delay) for level, port in enumerate(self.ports)]
        )

    def cut_graph(self, segments: Cut, level: int, border: float) -> CutGraph | None:
        """Graph of a cut, of all operators or some consecutive ones; None for an unmeasured segment.

        Numbers of cores without a gain are left out.
        """
        genes, times, moved = [], [], []
        for start, stop in segments:
            genes_by_width: dict[int, Gene] = {}
            cycles: dict[int, int] = {}
            for width in widths(self.target_graph):
                entry = self.table.best(start, stop, level, width)
                price = 0 if entry is None else round(max(entry[0] - border, 0.5 * entry[0]))
                if entry is not None and price < min(cycles.values(), default=price + 1):
                    genes_by_width[width], cycles[width] = entry[1], price
            if not genes_by_width:
                return None
            genes.append(genes_by_width)
            times.append(cycles)
            moved.append({width: self.table.moved(gene) for width, gene in genes_by_width.items()})
        edges = segment_edges(self.target_graph, tuple(genes_by_width[min(genes_by_width)] for genes_by_width in genes))
        wiring = segment_wiring(self.target_graph, [start for start, _ in segments], segments[-1][1])
        return CutGraph(tuple(genes), tuple(times), tuple(moved), tuple(edges), wiring, self.cores[level], self.ports[level], self.delay)

    def proposals(
        self,
        level: int,
        border: float,
        genomes: Sequence[Genome],
        rng: np.random.Generator,
        is_known: Callable[[Genome], bool] = lambda _: False,
        staged: Sequence[Genome] = (),
    ) -> list[Genome]:
        """Placed genomes for a level, fastest first by the estimate, without those that `is_known`: from walks, list schedules and
        `staged`.  Empty if the first genome does not gain the configured share over the segmentation on all cores.

        A program slower than another by more than the estimate's largest error is not worth a measurement.
        genomes: measured genomes, the best first: their cuts are placed again, and a walk starts from each.
        """
        segmentations = [self.table.segmentation(level, border, width=self.cores[level])]
        for noise, longest in ((0.0, None), (0.05, 4)):
            segmentations.append(self.table.segmentation(level, border, noise, rng, longest, width=1))
        wide, *narrow = [None if segmentation is None else segmentation[0] for segmentation in segmentations]
        cuts = dict.fromkeys(segment_cut(genome) for genome in (*narrow, *genomes[:1]) if genome is not None)
        graphs = [graph for genome_cut in cuts if (graph := self.cut_graph(genome_cut, level, border)) is not None]
        listed = sorted(placement for graph in graphs for placement in self.list_schedules(graph))
        annealer = Annealer(self.table, level, border, self.ports[level], self.delay, self.cores[level])
        starts = [genome for genome in (wide, *(genome for _, genome in listed[:1]), *genomes[:1]) if genome is not None]
        steps = self.config.annealing // len(self.ports)
        walks = [annealer.annealed(start, steps, rng, noise) for start, noise in zip(starts, (0.0, 0.02, 0.02), strict=False)]
        expected = {genome: annealer.expected(genome) for genome in (*walks, *(genome for _, genome in listed), *staged)}
        fastest = min(expected.values(), default=0.0)
        if wide is not None and fastest > (1 - self.config.gain) * annealer.expected(wide):
            return []
        limit = (1 + _DOUBT) * fastest
        return [g for g in sorted(expected, key=lambda g: (expected[g], g)) if expected[g] <= limit and not is_known(g)]

    def list_schedules(self, graph: CutGraph) -> list[tuple[float, Genome]]:
        """Placements by list scheduling with expected cycles, the fastest first."""
        settings = (allocate_widths(graph.dag, graph.times, graph.cores), [min(times) for times in graph.times], None)
        placement = [
            list_schedule(graph.dag, graph.times, graph.cores, self.delay, setting, in_order).cores
            for setting in settings
            for in_order in (False, True)
        ]
        return sorted((graph.expected(cores), graph.genome(cores)) for cores in dict.fromkeys(placement))

    def propose_stages(self, graph: CutGraph, level: int, border: float, clustered: bool = True) -> Asking[StagedProgram | None]:
        """Cheapest stages of linear clusters of segments.

        None if the search would exceed the configured number of states, or a segment is not measured on one core.
        """
        if any(1 not in times for times in graph.times):
            return None
        quotient = self.quotient(graph, clustered)
        clusters = quotient.clusters
        states = self.states(quotient)
        if states is None:
            return None
        times = [_sequence_cycles([graph.times[i] for i in cluster]) for cluster in clusters]
        moved = [sum(graph.moved[i][1] for i in cluster) / self.ports[level] for cluster in clusters]

        def place_stage(stage: Stage) -> dict[int, Cores]:
            assignment = assign_cores(stage, times, graph.cores)
            groups = ((i, cores) for group, cores in zip(stage, assignment, strict=True) for c in group for i in clusters[c])
            return {i: cores[: _fastest(graph.times[i], len(cores))] for i, cores in groups}

        def bound(stage: Stage) -> int:
            load = [0] * graph.cores
            for group, cores in zip(stage, assign_cores(stage, times, graph.cores), strict=True):
                for core in cores:
                    load[core] += sum(times[c][len(cores)] for c in group)
            return round(border + max(*load, sum(moved[c] for group in stage for c in group)))

        def ask(stages: Sequence[Stage]) -> Asking[list[int]]:
            return self._measure_stages(graph, [place_stage(stage) for stage in stages], [bound(stage) for stage in stages], level)

        # the partition asks for cycles of stages, which are measured as requests
        best = yield from translate(partition(quotient.dag, states, bound, self.config.stages), ask)
        places = {i: (cores, number) for number, stage in enumerate(best.stages) for i, cores in place_stage(stage).items()}
        core_sets = [places[i][0] for i in range(len(graph.dag))]
        genome = graph.genome(core_sets)
        stages = [tuple(gene for i, gene in enumerate(genome) if places[i][1] == number) for number in range(len(best.stages))]
        widths_of_pieces = [len(cores) for cores in core_sets]
        schedules = [
            list_schedule(graph.dag, graph.times, graph.cores, self.delay, widths_of_pieces, in_order).cores for in_order in (False, True)
        ]
        listed = tuple(graph.genome(cores) for cores in dict.fromkeys(schedules))
        return StagedProgram(best, len(clusters), tuple(stages), genome, listed)

    def quotient(self, graph: CutGraph, clustered: bool = True) -> Quotient:
        """Linear clusters of the segments, contracted while the longest path stays equal; or the segments themselves."""
        return contract(graph.dag, linear_clusters(graph.dag, self.delay) if clustered else [], graph.dag.span)

    def states(self, quotient: Quotient) -> States | None:
        """States of the search for stages; None if more than the configuration allows."""
        pruning = Pruning(self.config.group_clusters, self.config.groups)
        return enumerate_states(quotient.dag, pruning, self.config.states, self.config.states * _STEPS)

    def _measure_stages(self, graph: CutGraph, stages: Sequence[dict[int, Cores]], bounds: Sequence[int], level: int) -> Asking[list[int]]:
        """Cycles of placed stages, measured; for a stage without parallel segments its bound, which is exact."""
        keys: list[object] = []
        open_: dict[object, Genome] = {}
        for stage_cores in stages:
            positions = {i: position for position, i in enumerate(sorted(stage_cores))}
            genes = tuple(graph.genes[i][len(stage_cores[i])]._replace(cores=stage_cores[i]) for i in positions)
            edges = tuple((positions[a], positions[b]) for a, b in graph.edges if a in positions and b in positions)
            key: object = (tuple((self.table.structures.key(gene), gene.cores) for gene in genes), edges)
            keys.append(None if runs_in_sequence(genes) else key)
            if keys[-1] is not None and key not in self._predicted:
                open_[key] = genes
        measurements = yield [Request("stage", genes, proposal=PLACEMENT) for genes in open_.values()]
        for key, measurement in zip(open_, measurements, strict=True):
            self._predicted[key] = measurement.cycles
        cycles = []
        for key, bound in zip(keys, bounds, strict=True):
            measured = None if key is None else self._predicted[key]
            cycles.append(bound if key is None else _NEVER if measured is None else int(measured[level]))
        return cycles


def _sequence_cycles(times: Sequence[Widths]) -> Widths:
    """Cycles of segments in sequence by number of cores, each segment on its fastest number."""
    all_widths = set[int].union(*(set(t) for t in times))
    return {width: sum(t[_fastest(t, width)] for t in times) for width in sorted(all_widths)}


def _fastest(times: Widths, cores: int) -> int:
    """Fastest number of cores for a segment, up to `cores`; the smallest of equals."""
    return min((width for width in times if width <= cores), key=lambda width: (times[width], width))
