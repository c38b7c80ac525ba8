"""Covers of which sections are dealt to the cores."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from compiler.derive.gene import Genome
from compiler.derive.moves import MOVES, verify
from compiler.derive.realise import realise
from tests.tuner.search.test_placing import measured, placer, unit
from tuner.search.epoch import hopeful
from tuner.search.explore import propose
from tuner.search.lab import Lab
from tuner.search.sections import Cut, sectioned


@pytest.mark.parametrize("cores", [2, 4])
def test_a_section_takes_the_place_of_what_it_beats(cores: int) -> None:
    _, table = measured("inception_block", cores)
    wide = table.cover(0, width=cores)
    assert wide is not None
    asked: list[Cut] = []

    def place(cut: Cut, share: float) -> tuple[float, Genome]:
        """Every segment on core 1, in so much of the time of all cores."""
        asked.append(cut)
        genes = [found[1] for start, stop in cut if (found := table.best(start, stop, 0, 1))]
        return share * (wide[1][cut[-1][1]] - wide[1][cut[0][0]]), tuple(gene._replace(cores=(1,)) for gene in genes)

    found = sectioned(table, 0, 0.0, lambda cut: place(cut, 0.5))
    assert asked
    for cut in asked:
        assert all(a[1] == b[0] for a, b in pairwise(cut)), "one operator after the other"
    assert found is not None
    verify(unit("inception_block", cores), found)
    assert {gene.cores for gene in found} & {(1,)}
    assert sectioned(table, 0, 0.0, lambda cut: place(cut, 1.5)) is None, "nothing gains"
    assert sectioned(table, 0, 0.0, lambda cut: None) is None


@pytest.mark.parametrize("cores", [2, 4])
def test_sections_of_list_schedules_are_expected_to_be_faster(cores: int) -> None:
    _, table = measured("inception_block", cores)
    p = placer(table, descent=100)
    found = p.sections(0, 0.0)
    wide = table.cover(0, width=cores)
    assert wide is not None
    if found is not None:
        verify(unit("inception_block", cores), found)
        assert any(len(gene.cores) < cores for gene in found)
        kept = [gene for gene in found if len(gene.cores) == cores]
        assert all(table.best(gene.start, gene.stop, 0, cores) for gene in kept)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_segments_are_proposed_for_so_many_cores(width: int) -> None:
    _, table = measured("inception_block", 4)
    u = unit("inception_block", 4)
    cover = table.cover(0)
    assert cover is not None
    moves = {name: move for name, move in MOVES.items() if name != "change_cores"}
    genes = propose(u, table, [cover[0]], 40, np.random.default_rng(2), moves, width)
    assert len(genes) >= 30
    assert {gene.cores for gene in genes} == {tuple(range(width))}
    assert all(realise(u, gene) is not None for gene in genes), "they fit, in more blocks where it takes more"
    assert not any(table.known(gene) for gene in genes)


def test_what_is_hopeful_is_so_at_some_level() -> None:
    _, table = measured()
    cover = table.cover(0)
    assert cover is not None
    a, b, c, d = (tuple(gene._replace(prefetch=n) for gene in cover[0]) for n in (1, 2, 3, 4))
    cycles = {a: (100, 200), b: (110, 190), c: (105, 193), d: (103, 195)}
    lab = cast(Lab, SimpleNamespace(expected=lambda genomes: [np.array(cycles[genome]) for genome in genomes]))
    assert hopeful(lab, [a, b, c, d], {a, b}) == [a, b, c]
    assert hopeful(lab, [c, d], {a, b}) == [c, d], "nothing to compare with"
