"""What of a machine's memory and cores a program may use: granted by a level, needed by a program.

A share of the bandwidth is taken from a program while it runs.  Memory and cores are not: whoever shares the chip says before how much of
them there is, and the controller runs only what fits.  On-chip addresses of a program are relative to the first byte that it is granted,
its cores are numbers in the set that it is granted: so only sizes matter, never places.
"""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """l1_bytes: of L1, on every core.  shared_bytes: of the memory that all cores share; 0 where there is none.  cores: how many."""

    l1_bytes: int
    shared_bytes: int
    cores: int

    def fits(self, granted: Grant) -> bool:
        """Whether a program that needs this runs where `granted` is there."""
        return all(need <= have for need, have in zip(self, granted, strict=True))

    def beyond(self, granted: Grant) -> str:
        """What a program that needs this lacks where only `granted` is there; '' where it fits."""
        return ", ".join(f"needs {need:,} {what}, granted are {have:,}" for have, what, need in granted.less(self))

    def less(self, than: Grant) -> list[tuple[int, str, int]]:
        """(this, of what, that) where this is less."""
        named = zip(self, ("B of L1", "B of shared memory", "cores"), than, strict=True)
        return [(mine, what, theirs) for mine, what, theirs in named if mine < theirs]


def most(needs: tuple[Grant, ...]) -> Grant:
    """What programs need that run one after the other."""
    return Grant(*map(max, zip(*needs, strict=True)))
