"""What of a machine's memory and cores a program may use: granted by a level, needed by a program.

A share of the bandwidth is taken from a program while it runs; memory and cores are not: whoever shares the chip says before how much of
them there is, and the controller runs only what fits.  On-chip addresses of a program are relative to the first byte that it is granted on
each core, its cores are numbers in the set that it is granted: so only sizes matter, never places.
"""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """l1_bytes: of L1, on every core.  cores: how many."""

    l1_bytes: int
    cores: int

    def beyond(self, granted: Grant) -> str:
        """What a program that needs this lacks where only `granted` is there; '' where it fits."""
        found = []
        if self.l1_bytes > granted.l1_bytes:
            found.append(f"needs {self.l1_bytes:,} B of L1, granted are {granted.l1_bytes:,}")
        if self.cores > granted.cores:
            found.append(f"needs cores 0..{self.cores - 1}, granted are {granted.cores}")
        return "; ".join(found)

    def fits(self, granted: Grant) -> bool:
        """Whether a program that needs this runs where `granted` is there."""
        return self.l1_bytes <= granted.l1_bytes and self.cores <= granted.cores

    def __or__(self, other: Grant) -> Grant:  # type: ignore[override]
        """What programs need that run one after the other: the most of each."""
        return Grant(max(self.l1_bytes, other.l1_bytes), max(self.cores, other.cores))
