"""Sibling convolutions of a segment as one: by choice of its plan, family by family.

A family (`Unit.families`) are convolutions of one input and one window whose weights and results lie in DDR one after the other.  As one
convolution it loads its input into L0A once, and its last tile of channels is fuller; but its results stay on chip together, its weights
are resident or streamed together, and a segment has to hold all of it.  A plan says so by the tilings: all of a family but the first one in
the segment are `sibling`.

A segment with such families is a segment of another unit (`segment.permuted`), and nothing below needs to know.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.plan.plan import Infeasible, SegmentPlan, SiblingTiling
from compiler.segment.permuted import arranged
from compiler.unit.unit import Unit

Family = tuple[int, ...]


class Joined(NamedTuple):
    """kept: operators of the segment that are left, by their place in it, so that operator kept[i] is kernel start + i of the unit."""

    unit: Unit
    start: int
    kept: tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def families_in(unit: Unit, start: int, stop: int) -> tuple[Family, ...]:
    """Families that lie whole in operators [start, stop), by their first ones."""
    return tuple(sorted((family for family in unit.families if start <= min(family) and max(family) < stop), key=min))


def chosen(unit: Unit, start: int, stop: int, siblings: int) -> tuple[Family, ...]:
    """Bit i of `siblings` stands for the i-th family of the segment."""
    return tuple(family for i, family in enumerate(families_in(unit, start, stop)) if siblings >> i & 1) if siblings else ()


def as_bits(unit: Unit, start: int, stop: int, families: tuple[Family, ...]) -> int:
    """Those of the families that lie whole in the segment, as bits."""
    return sum(1 << i for i, family in enumerate(families_in(unit, start, stop)) if family in families) if families else 0


@lru_cache(maxsize=4096)
def joined(unit: Unit, start: int, stop: int, families: tuple[Family, ...]) -> Joined:
    """The unit in which families of the segment are one convolution each."""
    first = {min(family): family for family in families}
    gone = {k for family in families for k in family} - set(first)
    groups = tuple(first.get(k, (k,)) for k in range(len(unit.kernels)) if k not in gone)
    return Joined(arranged(unit, groups), start, tuple(k - start for k in range(start, stop) if k not in gone))


def as_made(unit: Unit, plan: SegmentPlan, start: int) -> tuple[Unit, SegmentPlan, int] | Infeasible:
    """The unit, plan and first kernel by which a segment is made: those given where it has no `sibling`."""
    gone = {start + k for k, tiling in enumerate(plan.tilings) if isinstance(tiling, SiblingTiling)}
    if not gone:
        return unit, plan, start
    stop = start + len(plan.operators)
    families = tuple(family for family in families_in(unit, start, stop) if gone.intersection(family))
    for k in sorted(gone):
        mine = next((family for family in families if k in family), None)
        name = unit.kernels[k].name
        if mine is None:
            return Infeasible(name, "a `sibling` needs its whole family in the segment: convolutions of one input that can be one")
        if gone.intersection(mine) != set(mine) - {min(mine)}:
            *others, last = (unit.kernels[other].name for other in sorted(mine))
            return Infeasible(name, f"of {', '.join(others)} and {last} all but the first are `sibling`, or none")
    made = joined(unit, start, stop, families)
    return made.unit, without(plan, made), start


def without(plan: SegmentPlan, made: Joined) -> SegmentPlan:
    """The plan as that of the joined unit's segment."""
    names = tuple(made.unit.kernels[made.start + i].name for i in range(len(made.kept)))
    halo = tuple(plan.halo[k] for k in made.kept) if plan.halo else ()
    return plan.model_copy(update={"operators": names, "tilings": tuple(plan.tilings[k] for k in made.kept), "halo": halo})


def with_siblings(unit: Unit, plan: SegmentPlan, made: Joined, count: int) -> SegmentPlan:
    """The other way round: a plan of the joined unit's segment as one of `count` operators."""
    place = {k: i for i, k in enumerate(made.kept)}
    tilings = tuple(plan.tilings[place[k]] if k in place else SiblingTiling() for k in range(count))
    halo = tuple(plan.halo[place[k]] if k in place else "recompute" for k in range(count)) if plan.halo else ()
    names = tuple(spec.name for spec in unit.kernels[made.start : made.start + count])
    return plan.model_copy(update={"operators": names, "tilings": tilings, "halo": halo})
