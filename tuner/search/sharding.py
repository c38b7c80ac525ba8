"""Whose a segment is: every island looks for new ones among its own only.

Islands look near the same segmentations, and hear of each other an epoch late: when all looked everywhere, a seventh to a fifth of what
they measured was what another one measured too.  A structure's ways are one island's, so that whoever runs its jobs lowers and tiles what
it knows.  Single operators are dealt way by way: a model may be made of one structure, and its ways are what there is to search.
"""

from __future__ import annotations

from compiler.space.gene import Gene, Key
from compiler.space.structural_hash import Structures
from tuner.search.hashing import key_name


class Shard:
    """What one of so many islands looks for."""

    def __init__(self, structures: Structures, islands: int = 1, island: int = 0) -> None:
        self.islands, self.island, self._structures = islands, island, structures
        self._alone = {structures.structure(k, k + 1) for k in range(len(structures.target_graph.operators))} if islands > 1 else set()

    def may_hold(self, gene: Gene) -> bool:
        """False where `holds` is, whatever else is done with the gene: its structure alone says so."""
        structure = self._structures.structure(gene.start, gene.stop)
        return structure in self._alone or self._is_mine(int(structure, 16))

    def holds(self, key: Key) -> bool:
        """Of one island alone, in every process."""
        structure = key[0]
        return self._is_mine(key_name(key) if structure in self._alone else int(structure, 16))

    def _is_mine(self, name: int) -> bool:
        return name % self.islands == self.island
