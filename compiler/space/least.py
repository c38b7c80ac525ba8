"""What rules ask of plans: the least division that fits, and whether weights stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from compiler.kinds.conv import ConvSpec
from compiler.plan.plan import ConvTiling, SegmentPlan
from compiler.unit.operators import OperatorSpec
from compiler.unit.unit import Unit

_Value = TypeVar("_Value")


def least(values: Sequence[_Value], fits: Callable[[_Value], bool]) -> _Value | None:
    """The least of ascending values that fits, if those above it do; None where none does."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(values[middle]) else (middle + 1, high)
    return values[low] if low < len(values) else None


def streams(unit: Unit, plan: SegmentPlan, start: int) -> bool:
    """Whether some weights come for every block; not those that are streamed from what UB keeps of them (`unit.expansion`)."""
    pairs = zip(unit.operators[start:], plan.tilings, strict=False)
    return any(isinstance(tiling, ConvTiling) and tiling.weights == "streamed" and not _kept(spec) for spec, tiling in pairs)


def staying_blocks(unit: Unit, start: int, stop: int) -> int:
    """Blocks of L1 that the weights of a run of operators take where none of them come for every block of several."""
    return sum([spec.weight_blocks for spec in unit.operators[start:stop] if not _kept(spec)])


def _kept(spec: OperatorSpec) -> bool:
    return isinstance(spec, ConvSpec) and spec.expansion is not None and spec.expansion.kept
