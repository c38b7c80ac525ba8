"""The same operators in another order: another unit over the same memory.

Storages, weights and their addresses stay where they are, so segments of differently arranged units meet in DDR as those of one unit do,
and variants of a container need not agree.  What changes is which kernels are neighbours, and which number each of them has; records keep
the number of the unit that was arranged (`KernelSpec.tag`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from compiler.plan.plan import Infeasible
from compiler.unit.unit import Unit


def in_order(unit: Unit, names: Sequence[str]) -> Unit | Infeasible:
    """The unit with its operators in the order of their names; why not where these are others, or none after what it reads."""
    known = {spec.name: k for k, spec in enumerate(unit.kernels)}
    order = [known.get(name, -1) for name in names]
    if order == list(range(len(unit.kernels))):
        return unit
    made = set[int]()
    for at, (name, k) in enumerate(zip(names, order, strict=True)):
        if k < 0:
            return Infeasible(f"operator {at}", f"{name!r} is none of the model's {len(known)}")
        if k in made:
            return Infeasible(f"operator {at}", f"{name!r} is there already; expected every operator once")
        late = [unit.kernels[source].name for source in unit.producers[k] if source not in made]
        if late:
            return Infeasible(f"operator {at}", f"{name!r} reads what {late[0]!r} makes; expected it behind that")
        made.add(k)
    if len(made) < len(known):
        missing = next(spec.name for k, spec in enumerate(unit.kernels) if k not in made)
        return Infeasible(f"operator {len(names)}", f"is missing; expected {missing!r} somewhere")
    return arranged(unit, tuple(order))


@lru_cache(maxsize=256)
def arranged(unit: Unit, order: tuple[int, ...]) -> Unit:
    """A unit whose k-th kernel is kernel order[k] of this one.  The order has to be a topological one."""
    place = {old: new for new, old in enumerate(order)}

    def numbers(kernels: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(place[k] for k in kernels))

    return replace(
        unit,
        kernels=tuple(replace(unit.kernels[old], index=new, named=unit.kernels[old].tag) for new, old in enumerate(order)),
        producers={new: numbers(unit.producers[old]) for new, old in enumerate(order)},
        consumers={new: numbers(unit.consumers[old]) for new, old in enumerate(order)},
        escapes=frozenset(numbers(unit.escapes)),
    )
