"""Baseline of a search, in its best operator order.

Single operators gain nothing from an order that follows branches, and a little from independent neighbours.  The order of a search is
chosen for fusion; the baseline would be slower in it than necessary, and gains would look larger.

The baseline is tuned as well, since gains over an untuned program mean little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.build import measure_plans
from compiler.pipeline import Compiler
from compiler.plan.plan import Plan
from compiler.space.shared_memory import with_residents
from compiler.target.level_limits import at_level


def faster_in_file_order(compiler: Compiler, baseline: Plan, levels: Sequence[str]) -> Plan:
    """A plan of single operators, or the same in the file's order, whichever has the smaller product of cycles over the levels."""
    number = {spec.name: spec.tag for spec in compiler.target_graph.operators}
    in_file = tuple(sorted(baseline.segments, key=lambda segment: number[segment.operators[0]]))
    if in_file == baseline.segments:
        return baseline

    def product(plan: Plan) -> int:
        timings = measure_plans(compiler, dict.fromkeys(levels, plan))[levels[0]].timings
        return math.prod(timings[level].cycles for level in levels)

    reordered = baseline.model_copy(update={"segments": in_file})
    return min((baseline, with_residents(at_level(compiler.target_graph, levels[0]), reordered)), key=product)
