"""Whose a segment is: every island looks for new ones among its own only.

Islands look near the same covers, and hear of each other an epoch late: when all looked everywhere, a seventh to a fifth of what they
measured was what another one measured too.  A structure's ways are one island's, so that whoever runs its jobs lowers and tiles what it
knows.  Single operators are dealt way by way: a model may be made of one structure, and its ways are what there is to search.
"""

from __future__ import annotations

from compiler.derive.gene import Key
from compiler.derive.structures import Structures
from tuner.search.names import key_name


class Deal:
    """To so many islands."""

    def __init__(self, structures: Structures, islands: int) -> None:
        self.islands = islands
        self._alone = {structures.structure(k, k + 1) for k in range(len(structures.unit.kernels))}

    def owner(self, key: Key) -> int:
        """Number of an island, the same in every process."""
        structure = key[0]
        return (key_name(key) if structure in self._alone else int(structure, 16)) % self.islands
