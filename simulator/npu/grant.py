"""Grants: the part of a machine's memory and cores that a level gives to a program, or that a program needs.

A share of the bandwidth changes while a program runs.  Memory and cores do not: they are announced before a run, and the controller runs
only programs that fit.  On-chip addresses of a program are relative to the first granted byte, and its cores are indices of the
granted set.  So only sizes matter, never addresses.
"""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """Granted or needed resources.  l1_bytes: L1 of every core.  shared_bytes: the memory that all cores share; 0 without one.  cores:
    number."""

    l1_bytes: int
    shared_bytes: int
    cores: int

    def fits(self, granted: Grant) -> bool:
        """Whether a program with these needs fits in `granted`."""
        return all(need <= size for need, size in zip(self, granted, strict=True))

    def shortage(self, granted: Grant) -> str:
        """A message with the needs that exceed `granted`; '' where the program fits."""
        return ", ".join(f"needs {need:,} {kind}, granted are {size:,}" for size, kind, need in granted.smaller_sizes(self))

    def smaller_sizes(self, than: Grant) -> list[tuple[int, str, int]]:
        """(size here, its name, size of `than`) of every size that is smaller here."""
        named = zip(self, ("B of L1", "B of shared memory", "cores"), than, strict=True)
        return [(size, kind, other_size) for size, kind, other_size in named if size < other_size]


def combined_needs(needs: tuple[Grant, ...]) -> Grant:
    """The needs of programs that run one after the other: the largest of each size."""
    return Grant(*map(max, zip(*needs, strict=True)))
