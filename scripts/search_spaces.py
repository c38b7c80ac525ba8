"""Search spaces of the study of searches: all legal tilings of one convolution, and all plans of a network."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray

from compiler.cost.operator_space import OperatorSpace, operator_space
from compiler.ops.conv import ConvSpec
from compiler.plan.plan import ConvTiling, Infeasible, SegmentPlan
from compiler.space.decode import decode
from compiler.space.encode import encode
from compiler.space.gene import BLOCK_COUNTS, Gene, Genome, block_counts
from compiler.space.initial import single_operators
from compiler.space.mutators import MOVES, crossover, random_genome, repaired
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import InfeasibleError
from tuner.cost_model.tiling_model import single_block_counts

Rng = np.random.Generator
COLUMNS = ("blocks", "prefetch", "resident", "chunk_n1", "chunk_k1", "tile_m", "tile_n1", "tile_k1", "n_outer")


class TilingSpace:
    """Ways to run one convolution; a point is a row of `OperatorSpace.points`.

    Changing a coordinate keeps the others as far as that is legal: the nearest legal way, in octaves, is taken.
    """

    def __init__(self, target_graph: TargetGraph, space: OperatorSpace) -> None:
        self.target_graph, self.space = target_graph, space
        self._logs = np.log2(space.points + 1.0).astype(np.float32)
        columns = [np.unique(column, return_inverse=True) for column in space.points.T]
        self.values = [values for values, _ in columns]
        self._rows = [[np.flatnonzero(place == i) for i in range(len(values))] for values, place in columns]
        self._halo = target_graph.operators[0].operator.has_halo
        genome = single_operators(target_graph)
        if isinstance(genome, Infeasible):
            raise InfeasibleError(f"{target_graph.machine.name}: {genome}")
        plan = decode(target_graph, genome[0])
        assert plan is not None
        self.start = self._nearest_point(_row(plan))

    def genome(self, point: int) -> Genome:
        """Halos cached: of an operator alone that saves loads and L1, so ours looks at nothing else."""
        plan = self.space.plan(point)
        plan = plan.model_copy(update={"halo": ("cache",)}) if self._halo and plan.blocks > 1 else plan
        gene = encode(self.target_graph, plan, 0)
        assert gene is not None, "what is legal has a gene"
        return (gene,)

    def random(self, rng: Rng) -> int:
        return int(rng.integers(len(self.space.points)))

    def neighbour(self, point: int, rng: Rng) -> int:
        row = self.space.points[point].copy()
        free = [i for i, values in enumerate(self.values) if len(values) > 1]
        column = free[int(rng.integers(len(free)))]
        values = self.values[column]
        position = int(np.searchsorted(values, row[column]))
        candidates = (
            [i for i in (position - 2, position - 1, position + 1, position + 2) if 0 <= i < len(values)]
            if rng.random() < 0.7
            else range(len(values))
        )
        row[column] = values[candidates[int(rng.integers(len(candidates)))]]
        return self._nearest_point(row, column)

    def crossover(self, a: int, b: int, rng: Rng) -> int:
        first, second = self.space.points[a], self.space.points[b]
        return self._nearest_point(np.where(rng.random(len(first)) < 0.5, first, second))

    def parameters(self, point: int) -> dict[str, Any]:
        return {name: int(value) for name, value in zip(COLUMNS, self.space.points[point], strict=True)}

    def suggested(self, trial: optuna.Trial) -> int:
        row = [trial.suggest_categorical(name, values.tolist()) for name, values in zip(COLUMNS, self.values, strict=True)]
        return self._nearest_point(np.array(row, np.int64))

    def _nearest_point(self, row: NDArray[np.int64], column: int | None = None) -> int:
        """The legal way nearest to a row, of those with the same value in column `column`; the first of equals."""
        target = np.log2(row + 1.0).astype(np.float32)
        if column is None:
            return int(np.argmin(np.abs(self._logs - target).sum(1)))
        rows = self._rows[column][int(np.searchsorted(self.values[column], row[column]))]
        return int(rows[np.argmin(np.abs(self._logs[rows] - target).sum(1))])


def _row(plan: SegmentPlan) -> NDArray[np.int64]:
    tiling = plan.tilings[0]
    assert isinstance(tiling, ConvTiling)
    sizes = (tiling.chunk_n1, tiling.chunk_k1, tiling.tile_m, tiling.tile_n1, tiling.tile_k1)
    return np.array([plan.blocks, plan.prefetch, tiling.weights == "resident", *sizes, tiling.order == "n"], np.int64)


class PlanSpace:
    """Genomes of a network: random ones, moves and crossover of the search itself, and its repair."""

    def __init__(self, target_graph: TargetGraph) -> None:
        self.target_graph = target_graph
        genome = single_operators(target_graph)
        if isinstance(genome, Infeasible):
            raise InfeasibleError(f"{target_graph.machine.name}: {genome}")
        self.start: Genome = genome
        self._moves = [move for name, move in MOVES.items() if name != "change_cores" or target_graph.machine.cores > 1]
        self._fitting: dict[Gene, bool] = {}

    def genome(self, point: Genome) -> Genome:
        return point

    def random(self, rng: Rng) -> Genome:
        while True:
            genome = self._repaired(random_genome(self.target_graph, rng))
            if genome is not None:
                return genome

    def neighbour(self, point: Genome, rng: Rng) -> Genome:
        child = self._moves[int(rng.integers(len(self._moves)))](self.target_graph, point, rng)
        return point if child is None else self._repaired(child) or point

    def crossover(self, a: Genome, b: Genome, rng: Rng) -> Genome:
        return crossover(a, b, rng) or a

    def parameters(self, point: Genome) -> dict[str, Any]:
        genes = {gene.start: gene for gene in point}
        out: dict[str, Any] = {}
        for k in range(len(self.target_graph.operators)):
            if k:
                out[f"cut{k}"] = k in genes
            if k in genes:
                out |= {f"blocks{k}": genes[k].blocks, f"cached{k}": bool(genes[k].cached)}
        return out

    def suggested(self, trial: optuna.Trial) -> Genome:
        """Genome from a trial's starts of segments, and for each segment its blocks and whether halos are cached."""
        count = len(self.target_graph.operators)
        starts = [0, *(k for k in range(1, count) if trial.suggest_categorical(f"cut{k}", [True, False]))]
        genes = []
        for start, stop in zip(starts, [*starts[1:], count], strict=True):
            blocks = trial.suggest_categorical(f"blocks{start}", BLOCK_COUNTS)
            is_cached = trial.suggest_categorical(f"cached{start}", [False, True])
            block_count = max(b for b in block_counts(self.target_graph, start, stop) if b <= blocks)
            genes.append(Gene(start, stop, block_count, cached=-1 if is_cached else 0))
        return self._repaired(tuple(genes)) or self.start

    def _repaired(self, genome: Genome) -> Genome | None:
        return repaired(self.target_graph, genome, self._fits)

    def _fits(self, gene: Gene) -> bool:
        if gene not in self._fitting:
            self._fitting[gene] = decode(self.target_graph, gene) is not None
        return self._fitting[gene]


@lru_cache(maxsize=1)  # seeds and strategies look through one space
def search_space(target_graph: TargetGraph) -> TilingSpace | PlanSpace:
    """All legal tilings of one convolution, or all plans of a network."""
    if len(target_graph.operators) == 1 and isinstance(target_graph.operators[0], ConvSpec):
        return TilingSpace(target_graph, operator_space(target_graph, 0, single_block_counts(target_graph, 0)))
    return PlanSpace(target_graph)
