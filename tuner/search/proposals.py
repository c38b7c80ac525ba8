"""Whole programs that are proposed to an island beside its children: covers, placements, stages, loads ahead
of borders, windows without a limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from compiler.space.gene import Genome
from compiler.space.moves import change_ahead, random_genome
from tuner.search.asking import Asking
from tuner.search.explore import unlimited
from tuner.search.lab import Lab
from tuner.search.placing import cut_of
from tuner.search.population import Island

_MANY = 16  # programs of a turn, from which on loads are moved both a little and far
_NEAR = 0.01  # how much slower a program may be expected to be and still be measured: estimates are not better than that


def proposed(lab: Lab, island: Island, count: int, turn: int) -> Asking[list[Genome]]:
    """Some of `count` programs, none measured, in the order in which they deserve it.  turn: evolving epochs before this one.

    What follows from the table alone is dealt to the islands, so that they do not all measure the same.
    """
    taken: dict[Genome, None] = {}

    def take(genome: Genome | None) -> None:
        if genome is not None and not lab.known.measured(genome):
            taken.setdefault(genome)

    placed = yield from _by_placement(lab, island, turn)
    lab.wide = lab.rules.wide or (lab.placer is not None and not placed)
    if lab.island == 0 and placed and turn % lab.config.placement.every == 0:
        take(lab.table.singles())  # the baseline; what is placed would leave no room for it
    # of two programs every other island changes what it has by one
    share = min(count, max(2 if placed and lab.island % 2 == 0 else 1, count * 3 // 4))
    for genome in placed[:share]:
        take(genome)
    for cover in _by_table(lab, island, turn) if len(taken) < share else ():
        take(cover)
    return list(taken)[:share]


def varied(lab: Lab, island: Island, count: int, turn: int, taken: Collection[Genome]) -> Asking[list[Genome]]:
    """At most `count` more, not in `taken`: the best with other windows or loads ahead; random ones where nobody has anything to go by."""
    genomes: list[Genome | None] = []
    if not island.members and not taken:  # without covers, an island would wait for what its neighbours send
        genomes += [lab.permitted(random_genome(lab.unit, island.rng)) for _ in range(count)]
    genomes.append((yield from best_unlimited(lab, island, turn)))
    genomes += _retimed(lab, island, lab.config.search.generation, turn)
    found = (genome for genome in dict.fromkeys(genomes) if genome is not None and genome not in taken)
    return [genome for genome in found if not lab.known.measured(genome)][:count]


def _by_placement(lab: Lab, island: Island, turn: int) -> Asking[list[Genome]]:
    """The placer's proposals for one level, and among them what stages led to; levels take turns.

    None where they are not expected to be faster than every segment on all cores: then the search is the one that has nothing else.
    """
    if lab.placer is None:
        return []
    order = lab.rules.order
    level = order[(turn + lab.island) % len(order)]
    good = [m.genome for m in sorted(island.members, key=lambda m: (int(m.cycles[level]), m.task))[:3]]
    border = float(lab.known.border[level])
    rng = island.aside(2)
    staged = yield from _by_stages(lab, turn)
    return lab.placer.proposals(level, border, good, rng, lab.known.measured, staged)


def _by_stages(lab: Lab, turn: int) -> Asking[list[Genome]]:
    """Stages of the cheapest cover by short segments on one core, for one level and by one island after the other."""
    placement, rules = lab.config.placement, lab.rules
    number, other = divmod(turn - 1, placement.every)  # not before anything is known but what was measured first
    if lab.placer is None or not turn or other or number % rules.islands != lab.island:
        return []
    level = rules.order[number % len(rules.order)]
    border = float(lab.known.border[level])
    cover = lab.table.cover(level, border, longest=placement.longest, width=1)
    pieces = None if cover is None else lab.placer.pieces(cut_of(cover[0]), level, border)
    staged = None if pieces is None else (yield from lab.placer.staged(pieces, level, border))
    return [] if staged is None else list(dict.fromkeys([staged.genome, *staged.listed]))


def _by_table(lab: Lab, island: Island, turn: int) -> Iterator[Genome | None]:
    """Covers: the cheapest of every level at several prices of a border, and noisy ones; and the tuned layer-by-layer genome.

    Where there are several cores they are on all of them: a cover of any widths does not know what changing between them costs.
    """
    rules, border = lab.rules, lab.known.border
    width = lab.unit.machine.cores if rules.several > 1 else None
    if lab.island == 0 and (lab.placer is None or lab.wide):
        yield lab.table.singles()
    if not lab.config.use.covers:
        return
    prices = [(price, level) for price in (1.0, 0.5, 0.0, 1.5) for level in rules.order]
    for at, (price, level) in enumerate(prices):
        if (at + turn) % rules.islands == lab.island:
            found = lab.table.cover(level, price * border[level], width=width)
            yield found[0] if found else None
    for _ in range(2):
        for level in rules.order:
            found = lab.table.cover(level, border[level], 0.02, island.rng, width=width)
            yield found[0] if found else None


def best_unlimited(lab: Lab, island: Island, turn: int) -> Asking[Genome | None]:
    """The best program of a level, of each in turn, without a limit to its windows where that fits and is not expected to be slower.

    Islands take the levels one after another, so that they do not all measure the same.
    """
    if "change_window" not in lab.rules.moves or not island.members:
        return None
    level = lab.rules.order[(turn + lab.island) % len(lab.rules.order)]
    best = island.best(level)
    wide = lab.permitted(unlimited(lab.unit, best.genome))
    fits = [raw is not None for raw in (yield from lab.features(wide))]
    genome = tuple(new if fit else old for new, old, fit in zip(wide, best.genome, fits, strict=True))
    if genome == best.genome or lab.known.measured(genome):
        return None
    now, then = lab.expected([best.genome, genome])
    return genome if then[level] <= now[level] * (1 + _NEAR) else None


def _retimed(lab: Lab, island: Island, count: int, turn: int) -> Iterator[Genome | None]:
    """The best program of a level, of each in turn, with other loads ahead of its borders: only whole programs show what that saves."""
    if "change_ahead" not in lab.rules.moves or not island.members:
        return
    best = island.best(lab.rules.order[turn % len(lab.rules.order)]).genome
    if count < 8 and turn % 2:  # so that there is a place for children
        return
    for steps in (1, 3) if count >= _MANY else ((1, 3)[turn // 2 % 2],):
        changed = best
        for _ in range(steps):
            changed = change_ahead(lab.unit, changed, island.rng) or changed
        yield changed
