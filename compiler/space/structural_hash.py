"""Structural hashes: equal segments have equal hashes, at any position."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from compiler.segment.blocks import rows_needed
from compiler.segment.border_tensors import scratch_tensors
from compiler.space.gene import EVERY_LENGTH, Gene, Key, bare, has_halos, iterations, keeps_weights, with_weights, working_cores
from compiler.target.target_graph import TargetGraph


class Structures:
    """Hashes of runs of operators: equal segments, of one network or of several, share their tasks."""

    def __init__(self, target_graph: TargetGraph) -> None:
        self.target_graph = target_graph
        self._signatures = [_short(spec.signature(target_graph.storages)) for spec in target_graph.operators]
        self._digest = lru_cache(maxsize=1 << 16)(self._structure)
        self._keyed = lru_cache(maxsize=1 << 16)(self._key)

    def key(self, gene: Gene) -> Key:
        """Key for the cost of a segment alone: its structure, and the gene without its position and the numbers of its cores.

        Fields that matter only next to other segments are left out (`bare`).  Genes with different pins have different keys, because
        `decode` does not change pins.
        """
        return self._keyed(gene)

    def _key(self, gene: Gene) -> Key:
        gene = bare(gene)._replace(cores=tuple(range(len(working_cores(self.target_graph, gene)))))
        if gene.parts == len(gene.cores):
            gene = gene._replace(parts=0)
        if gene.pinned:
            return self.structure(gene.start, gene.stop), gene[2:]
        if len(gene.cores) == 1:
            gene = gene._replace(split="rows", parts=0)
        if gene.stop - gene.start == 1:
            gene = gene._replace(window=1, sliding=False)  # a single operator has no intermediates
        if iterations(self.target_graph, gene) == 1:
            gene = gene._replace(prefetch=2, window=1, cached=0)  # nothing is loaded or computed twice
        elif gene.cached and not has_halos(self.target_graph, gene.start, gene.stop):
            gene = gene._replace(cached=0)
        weighted = any(spec.weight_blocks for spec in self.target_graph.operators[gene.start : gene.stop])
        gene = (
            with_weights(self.target_graph, gene, keeps_weights(self.target_graph, gene)) if weighted else gene._replace(weights="reused")
        )
        return self.structure(gene.start, gene.stop), gene[2:]

    def structure(self, start: int, stop: int) -> str:
        """Hash of operators [start, stop), 16 hex digits: operators, edges, and results that leave the run."""
        return self._digest(start, stop)

    def places(self) -> dict[str, tuple[int, int]]:
        """Hash -> (start, stop) of the first run with it, for all runs of at most `EVERY_LENGTH` operators."""
        count, places = len(self.target_graph.operators), dict[str, tuple[int, int]]()
        for start in range(count):
            for stop in range(start + 1, min(count, start + EVERY_LENGTH) + 1):
                places.setdefault(self.structure(start, stop), (start, stop))
        return places

    def _structure(self, start: int, stop: int) -> str:
        target_graph = self.target_graph
        rows: list[object] = [target_graph.machine_digest, target_graph.dtype.name, target_graph.storages[0].n]
        names: dict[int, int] = {}
        for k in range(start, stop):
            spec = target_graph.operators[k]
            rows.append(self._signatures[k])
            rows.append(rows_needed(target_graph)[k])
            rows += [(names.setdefault(p.storage, len(names)), p.plane) for p in (*spec.reads, spec.y)]
            rows.append([s - start for s in target_graph.producers[k] if s >= start])
            rows.append(k in target_graph.escapes or any(c >= stop for c in target_graph.consumers[k]))
        if target_graph.machine.shared is not None:  # tensors that may be in the shared memory, and its size
            rows.append(
                [
                    (target_graph.storages[storage].name in scratch_tensors(target_graph), target_graph.storages[storage].image_blocks)
                    for storage in names
                ]
            )
        return _short(repr(rows))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
