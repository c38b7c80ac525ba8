"""Addresses: buffers with lifetimes into one memory, first fit, largest first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wish:
    """A buffer of `size` blocks that is live from step `birth` to step `death`, both included."""

    name: str
    size: int
    birth: int
    death: int


def allocate(wishes: list[Wish]) -> tuple[dict[str, int], int]:
    """Offsets by name, and the blocks needed in all.  Ties by name, so the same wishes get the same places."""
    placed: list[tuple[int, Wish]] = []
    offsets: dict[str, int] = {}
    peak = 0
    for wish in sorted(wishes, key=lambda w: (-w.size, w.birth, w.name)):
        at = 0
        for start, other in sorted((p for p in placed if _overlap(p[1], wish)), key=lambda p: p[0]):
            if at + wish.size <= start:
                break
            at = max(at, start + other.size)
        placed.append((at, wish))
        offsets[wish.name] = at
        peak = max(peak, at + wish.size)
    return offsets, peak


def _overlap(a: Wish, b: Wish) -> bool:
    return a.birth <= b.death and b.birth <= a.death


def fit(wishes: list[Wish], capacity: int, reach: int) -> tuple[dict[str, int], int]:
    """`allocate`, with lifetimes stretched by `reach` steps where that still fits, so that neighbours in time can overlap."""
    for extra in range(reach, 0, -1):
        stretched = [Wish(w.name, w.size, w.birth - extra, w.death + extra) for w in wishes]
        offsets, peak = allocate(stretched)
        if peak <= capacity:
            return offsets, peak
    return allocate(wishes)
