"""Shards: an epoch's proposals are divided among jobs that do not hear of each other; each has a shard of the possible segments.

All jobs of an epoch search near the same segmentations.  Without shards, a fifth to a seventh of their measurements were duplicates where
four jobs ran at a time.  The forms of a structure belong to few shards, so that a job tiles few structures for them.  Single operators are
dealt form by form: a model may consist of one structure, whose forms are then all there is to search.
"""

from __future__ import annotations

from compiler.space.gene import Gene, Key
from compiler.space.structural_hash import Structures
from tuner.search.hashing import key_name

GROUPS = 4  # of shards: structures are dealt to groups, their forms to the shards of a group


class Shard:
    """Shard `index` of `count`."""

    def __init__(self, structures: Structures, count: int = 1, index: int = 0) -> None:
        self.count, self.index, self._structures = count, index, structures
        self._groups = min(count, GROUPS)
        self._alone = {structures.structure(k, k + 1) for k in range(len(structures.target_graph.operators))} if count > 1 else set()

    def may_hold(self, gene: Gene) -> bool:
        """Whether `holds` can be true for any form of the gene: decided by its structure alone."""
        structure = self._structures.structure(gene.start, gene.stop)
        return structure in self._alone or self._is_in_group(structure)

    def holds(self, key: Key) -> bool:
        """Whether the key belongs to this shard; the same in every process."""
        structure, name = key[0], key_name(key)
        if structure in self._alone:
            return name % self.count == self.index
        place = self.index // self._groups
        return self._is_in_group(structure) and name % len(range(self.index % self._groups, self.count, self._groups)) == place

    def _is_in_group(self, structure: str) -> bool:
        return int(structure, 16) % self._groups == self.index % self._groups
