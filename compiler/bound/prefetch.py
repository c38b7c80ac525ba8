"""Theorem 2 of `docs/bounds.md`: weights whose operators need work done first fit on chip only up to its size.

A weight is finished when all its products are made.  Its channel of the input was then complete, so what that channel is made of is
finished as well: two products back, whole operators.  So after so much work no more than so many bytes of weights can be finished, and all
others but what lies on chip are still to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.bound.needs import Needs
from compiler.bound.phases import mixes
from compiler.unit.unit import Unit

Floats = NDArray[np.float64]


class Behind(NamedTuple):
    """work, weights_left: float64 [p]; while no more than work[i] is done, at least weights_left[i] bytes are not finished."""

    work: Floats
    weights_left: Floats


def finished_before(unit: Unit, needs: Needs) -> list[frozenset[int]]:
    """Of every operator those that are finished as soon as one of its weights is (docs/bounds.md, Lemma 4)."""
    whole: list[frozenset[int]] = []  # finished where all of a result is complete, the operator among them
    channel: list[frozenset[int]] = []  # finished where a channel of it is
    before: list[frozenset[int]] = []
    inputs: list[list[tuple[int, int]]] = [[] for _ in unit.operators]  # (operand, maker) where all that is needed of it is read
    parts: list[dict[int, int]] = [{} for _ in unit.operators]  # leaves of each operand
    for leaf in (*needs.made, *needs.given):
        for reading in leaf.readings:
            parts[reading.reader][reading.operand] = parts[reading.reader].get(reading.operand, 0) + 1
            if leaf.maker >= 0 and leaf.needed is not None and reading.box.same(leaf.needed):
                inputs[reading.reader].append((reading.operand, leaf.maker))
    nothing = frozenset[int]()
    for spec in unit.operators:
        k = spec.index
        all_inputs = nothing.union(*(whole[maker] for _, maker in inputs[k]))
        # a channel of a concatenation is in one of its parts
        of_one = [channel[maker] if parts[k][operand] == 1 else nothing for operand, maker in inputs[k]]
        first = [channel[maker] for operand, maker in inputs[k] if operand == 0 and parts[k][operand] == 1]
        whole.append(all_inputs | {k})
        channel.append(all_inputs if mixes(spec.operator) else nothing.union(*of_one))
        before.append(nothing.union(*first))
    return before


def behind(work: Floats, weights: Floats, before: Sequence[frozenset[int]]) -> Behind:
    """work: cycles of every operator, in proportion for a part of its weights.  weights: bytes.

    Finished weights are those of `before` of the operator with most work there, and, for what work is left, of operators with no more work
    before them, those that cost least a byte first.
    """
    mine = [np.array(sorted(found), np.int64) for found in before]
    done = np.array([work[found].sum() for found in mine])
    asked = np.unique(np.append(done[weights > 0], work.sum()))
    most = np.zeros(len(asked))
    ratio = np.argsort(work / np.maximum(weights, 1e-9), kind="stable")
    ratio = ratio[weights[ratio] > 0]
    first = {(done[k], before[k]): mine[k] for k in np.flatnonzero(weights > 0).tolist()}
    for (start, _), base in first.items():
        inside = np.zeros(len(work), np.bool_)
        inside[base] = True
        order = ratio[(done[ratio] <= start) & ~inside[ratio]]
        cost, gain = (np.concatenate([[0.0], np.cumsum(values[order])]) for values in (work, weights))
        allowed = asked > start  # at `start` itself nothing more than before: the bound is taken just below
        most[allowed] = np.maximum(most[allowed], weights[base].sum() + np.interp(asked[allowed] - start, cost, gain))
    return Behind(asked, np.maximum(0.0, weights.sum() - most))
