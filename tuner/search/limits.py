"""Limits and preferences of the configuration: the same for every job of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.space.gene import KNOBS, Gene, Genome, recut, widths
from compiler.space.mutators import MOVES, SWITCHES, Move
from compiler.target.target_graph import TargetGraph
from tuner.config import TuneConfig


class SearchLimits:
    """Limits of a search.  moves: moves for children.  several: numbers of cores of a segment.  placing: whether placement proposes
    programs.

    wide: whether every segment is always on all cores.  off: field -> its only value, for fields that are switched off.

    shards: number of shards of an epoch.  order: levels, by weight, descending.  at: `Level` of each level.  granted: grant of each level.
    less: whether some level grants less than all.
    """

    def __init__(self, target_graph: TargetGraph, levels: tuple[str, ...], config: TuneConfig, weights: Mapping[str, float]) -> None:
        self.target_graph, self.levels, self.config = target_graph, levels, config
        use, has_cores = config.use, target_graph.machine.cores > 1 and config.use.cores
        self.off = {knob.name: knob.off for knob in KNOBS.values() if knob.switch and not getattr(use, knob.switch)}
        self.shards = config.search.shards
        self.at = [target_graph.machine.contention[level] for level in levels]
        self.granted = [target_graph.machine.granted(level) for level in levels]
        self.less = any(granted != target_graph.machine.full_grant for granted in self.granted)
        self.level_weights = np.array([weights.get(level, 1.0) for level in levels])
        self.order = [int(i) for i in np.argsort(-self.level_weights, kind="stable")]
        off = {name for name, switch in SWITCHES.items() if not (has_cores if switch == "cores" else getattr(use, switch))}
        if config.search.moves is not None:
            off |= set(MOVES) - set(config.search.moves)
        self.moves: dict[str, Move] = {name: move for name, move in MOVES.items() if name not in off}
        self.several = len(widths(target_graph)) if has_cores else 1
        # one operator has no other beside it
        self.placing = has_cores and use.placement and use.segmentations and len(target_graph.operators) > 1
        self.wide = has_cores and not self.placing

    def permitted(self, gene: Gene) -> Gene:
        """Gene with all disabled fields at their `off` values."""
        if not self.config.use.block_fusion and gene.stop - gene.start > 1:
            gene = recut(gene, blocks=1, cores=gene.cores[: self.target_graph.images // gene.images])
        return recut(gene, **self.off) if self.off else gene

    def all_permitted(self, genome: Genome) -> Genome:
        return tuple(map(self.permitted, genome))
