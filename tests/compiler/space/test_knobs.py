"""The table of knobs agrees with itself, with the schema of a plan and with the configuration."""

from __future__ import annotations

from compiler.plan.plan import SegmentPlan
from compiler.space.gene import KNOBS, Gene, copied, find_fault
from compiler.target.target_graph import TargetGraph
from tests.compiler.space.test_gene import target_graph
from tuner.config import Use

UNIT: TargetGraph = target_graph("conv_chain")
DEFAULTS = Gene(0, 2)


def test_a_plan_has_the_same_defaults() -> None:
    keys = copied(DEFAULTS)
    assert len(keys) > 10
    assert keys == {name: SegmentPlan.model_fields[name].default for name in keys}


def test_marked_fields_are_last_and_marks_differ() -> None:
    marked = [knob.mark is not None for knob in KNOBS.values()]
    assert marked == sorted(marked)
    assert list(KNOBS) == list(Gene._fields)
    ranks = [knob.mark.rank for knob in KNOBS.values() if knob.mark]
    assert len(set(ranks)) == len(ranks)


def test_switches_are_those_of_configuration_and_keep_legality() -> None:
    off = {knob.name: knob.off for knob in KNOBS.values() if knob.switch}
    assert {knob.switch for knob in KNOBS.values() if knob.switch} <= set(Use.model_fields)
    assert find_fault(UNIT, (DEFAULTS._replace(**off),), False) is None
