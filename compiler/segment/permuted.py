"""The same operators in another order, or several of them made as one: another unit over the same memory.

Storages, weights and their addresses stay where they are, so segments of differently arranged units meet in DDR as those of one unit do,
and variants of a container need not agree.  What changes is which kernels are neighbours, and which number each of them has; records keep
the number of the unit that was arranged (`KernelSpec.tag`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from compiler.ir.graph import Conv
from compiler.kinds.conv import ConvSpec
from compiler.plan.plan import Infeasible
from compiler.unit.operators import KernelSpec
from compiler.unit.storages import Piece
from compiler.unit.unit import Shaped, Unit

Groups = tuple[tuple[int, ...], ...]


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
    return arranged(unit, tuple((k,) for k in order))


@lru_cache(maxsize=256)
def arranged(unit: Unit, groups: Groups) -> Unit:
    """A unit whose k-th kernel is the k-th group: an operator, or a family of `unit.families` as one convolution.

    The order has to be a topological one.
    """
    place = {old: new for new, group in enumerate(groups) for old in group}
    storages, moved = list(unit.storages), dict[int, tuple[int, int]]()
    for group in groups:
        if len(group) > 1:
            results = [unit.kernels[k].y for k in group]
            planes = 0
            for y in results:
                moved[y.storage] = (len(storages), planes)
                planes += y.planes
            whole = unit.storages[results[0].storage]
            storages.append(replace(whole, name="+".join(unit.storages[y.storage].name for y in results), planes=planes))

    def piece(old: Piece) -> Piece:
        storage, planes = moved.get(old.storage, (old.storage, 0))
        return Piece(storage, old.plane + planes, old.planes)

    def numbers(kernels: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({place[k] for k in kernels}))

    def kernel(new: int, group: tuple[int, ...]) -> KernelSpec:
        spec = unit.kernels[min(group)] if len(group) == 1 else _as_one(unit, group)
        y = piece(unit.kernels[group[0]].y)._replace(planes=sum(unit.kernels[k].y.planes for k in group))
        return replace(spec, index=new, named=unit.kernels[min(group)].tag, reads=tuple(map(piece, spec.reads)), y=y)

    return replace(
        unit,
        storages=tuple(storages),
        kernels=tuple(kernel(new, group) for new, group in enumerate(groups)),
        producers={new: numbers(source for k in group for source in unit.producers[k]) for new, group in enumerate(groups)},
        consumers={new: numbers(reader for k in group for reader in unit.consumers[k]) for new, group in enumerate(groups)},
        escapes=frozenset(numbers(unit.escapes)),
        families=tuple(tuple(place[k] for k in family) for family in unit.families if (family[0],) in groups),
    )


def _as_one(unit: Unit, family: tuple[int, ...]) -> ConvSpec:
    """A family's convolution: weights and biases lie one member after the other, and so do its results."""
    members = [spec for k in family if isinstance(spec := unit.kernels[k], ConvSpec)]
    first = members[0]
    assert isinstance(first.kernel, Conv)
    channels = sum(spec.kernel.weights.shape[0] for spec in members if isinstance(spec.kernel, Conv))
    name = "+".join(spec.name for spec in members)
    weights = Shaped((channels, *first.kernel.weights.shape[1:]))
    kernel = replace(first.kernel, name=name, weights=weights)  # type: ignore[arg-type]
    return replace(first, name=name, kernel=kernel, n1=sum(spec.n1 for spec in members))
