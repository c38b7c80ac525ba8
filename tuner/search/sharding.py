"""Assignment of segments to islands: an island proposes new segments only in its own shard.

Islands search near the same segmentations, and receive each other's findings an epoch late: without shards, a fifth to a seventh of their
measurements were duplicates.  All forms of a structure belong to one island, so that its process lowers and tiles known structures.
Single operators are dealt form by form: a model may consist of one structure, whose forms are then all there is to search.
"""

from __future__ import annotations

from compiler.space.gene import Gene, Key
from compiler.space.structural_hash import Structures
from tuner.search.hashing import key_name


class Shard:
    """Shard of one island among `islands`."""

    def __init__(self, structures: Structures, islands: int = 1, island: int = 0) -> None:
        self.islands, self.island, self._structures = islands, island, structures
        self._alone = {structures.structure(k, k + 1) for k in range(len(structures.target_graph.operators))} if islands > 1 else set()

    def may_hold(self, gene: Gene) -> bool:
        """Whether `holds` can be true for any form of the gene: decided by its structure alone."""
        structure = self._structures.structure(gene.start, gene.stop)
        return structure in self._alone or self._is_mine(int(structure, 16))

    def holds(self, key: Key) -> bool:
        """Whether the key belongs to this island; the same in every process."""
        structure = key[0]
        return self._is_mine(key_name(key) if structure in self._alone else int(structure, 16))

    def _is_mine(self, name: int) -> bool:
        return name % self.islands == self.island
