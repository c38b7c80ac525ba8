"""What an earlier run says of segments of a new network that nobody measured: genes of segments of equal form, and what they may take.

Segments of equal form (`compiler.space.forms`) differ in their channels alone, so what was fast for one of them is worth measuring for
another one before anything else.  It is expected to take what it took there, times what the estimate says of it here over what that says
of it there: what the estimate leaves out is much the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from compiler.cost.features import expected_cycles, raw_features
from compiler.frontend.lower import lower_partition
from compiler.frontend.worth import Offload
from compiler.kinds.build import make_unit
from compiler.plan.plan import SegmentPlan
from compiler.space.decode import decode
from compiler.space.forms import Forms, runs
from compiler.space.gene import Gene, block_counts
from compiler.space.gene_of import gene_of
from compiler.space.order import ORDERS, ordered
from compiler.space.structures import Structures
from compiler.unit.unit import Unit
from simulator.npu.errors import TilefarmError
from tuner.networks.load import load_network
from tuner.networks.zoo import model_digest
from tuner.store.source import read_source
from tuner.world.place import Place

Floats = NDArray[np.float64]
_BEST = 4  # genes of a structure and level that are worth trying elsewhere
_MORE = 4  # next numbers of blocks that are tried where one does not fit


class Hint(NamedTuple):
    """A segment that may be fast here.  expected: float64 [levels], cycles."""

    gene: Gene
    expected: Floats


class EarlierSegment(NamedTuple):
    """A segment that an earlier run measured.  plan: JSON without its operators.  cycles: int64 [levels]."""

    task: str
    structure: str
    plan: Mapping[str, Any]
    cycles: NDArray[np.int64]


def units_of(run: Place) -> tuple[Unit, ...]:
    """The pieces of a run's model, in every order that searches have them in; none where the model is gone, or can no longer be read."""
    try:
        source = read_source(run).source
        graphs, _ = lower_partition(load_network(source.model, source.shapes), Offload(source.machine, source.dtype))
        pieces = [make_unit(graph, source.machine, source.dtype) for graph in graphs]
    except TilefarmError:
        return ()
    units = [ordered(piece, order) for piece in pieces for order in ORDERS]
    return tuple({unit.digest: unit for unit in units}.values())


def model_there(run: Place) -> str:
    """A digest of the model's file, or its name where it is made; - where it is gone."""
    try:
        return model_digest(read_source(run).source.model)
    except TilefarmError:
        return "-"


def hints(unit: Unit, levels: Sequence[str], earlier: Unit, tried: Sequence[EarlierSegment], known: frozenset[str]) -> list[Hint]:
    """Of every structure of a unit that is not in `known`, the best of what was tried for those of equal form, as far as it fits.

    earlier: the unit, on an equal machine, that was searched then.
    """
    there = {structure: run for run, structure in reversed(_structures(earlier).items())}
    here = {structure: run for run, structure in reversed(_structures(unit).items()) if structure not in known}
    forms = Forms(unit)
    alike: dict[str, list[tuple[int, int]]] = {}
    for run in here.values():
        alike.setdefault(forms.form(*run), []).append(run)
    by_structure: dict[str, list[EarlierSegment]] = {}
    for each in tried:
        by_structure.setdefault(each.structure, []).append(each)
    found, keys = dict[Any, Hint](), Structures(unit)
    forms = Forms(earlier)
    for structure, mine in by_structure.items():
        places = alike.get(forms.form(*there[structure]), ()) if structure in there else ()
        for each in _best(mine) if places else ():
            gene = _gene(earlier, each.plan, there[structure])
            if gene is None or gene.pinned:  # tilings to the letter are of those tiles
                continue
            before = _estimated(earlier, gene, levels)
            for start, stop in places:
                moved, now = _fitting(unit, gene._replace(start=start, stop=stop), levels)
                if before is None or now is None:
                    continue
                hint = Hint(moved, each.cycles * now / before)
                key = keys.key(moved)
                if key not in found or hint.expected.sum() < found[key].expected.sum():
                    found[key] = hint
    return list(found.values())


def _structures(unit: Unit) -> dict[tuple[int, int], str]:
    structures = Structures(unit)
    return {run: structures.structure(*run) for run in runs(unit)}


def _best(tried: Sequence[EarlierSegment]) -> list[EarlierSegment]:
    """Of every level."""
    chosen: dict[str, EarlierSegment] = {}
    for level in range(len(tried[0].cycles)):
        order = sorted(tried, key=lambda each: (int(each.cycles[level]), each.task))
        chosen.update((each.task, each) for each in order[:_BEST])
    return list(chosen.values())


def _gene(unit: Unit, plan: Mapping[str, Any], run: tuple[int, int]) -> Gene | None:
    names = tuple(spec.name for spec in unit.operators[slice(*run)])
    try:
        return gene_of(unit, SegmentPlan.model_validate({**plan, "operators": names}), run[0])
    except (TypeError, ValidationError):  # a task of a program with other plans
        return None


def _fitting(unit: Unit, gene: Gene, levels: Sequence[str]) -> tuple[Gene, Floats | None]:
    """The gene and its estimate, in more blocks where there are too many channels for it."""
    more = [count for count in block_counts(unit, gene.start, gene.stop) if count > gene.blocks]
    for blocks in (gene.blocks, *more[:_MORE]):
        cut = gene._replace(blocks=blocks)
        estimated = _estimated(unit, cut, levels)
        if estimated is not None:
            return cut, estimated
    return gene, None


def _estimated(unit: Unit, gene: Gene, levels: Sequence[str]) -> Floats | None:
    """float64 [levels]; None where it does not fit."""
    plan = decode(unit, gene)
    if plan is None:
        return None
    raw = raw_features(unit, plan, gene.start)[None]
    return np.array([expected_cycles(raw, unit.machine.contention[level])[0] for level in levels])
