"""Programs of the search as bytes that a runner can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.build import operators
from compiler.ops.lower_graph import Packed
from compiler.plan.plan import SegmentPlan
from simulator.npu.container import Container, SegmentEntry, Variant
from simulator.npu.container_file import encode
from simulator.npu.program import Program
from tuner.measure.runner_api import Encoded, Kind


def encoded(packed_unit: Packed, kind: Kind, program: Program, segments: Sequence[SegmentPlan], cycles: Mapping[str, int]) -> Encoded:
    """Program of the target graph, as the variant of every level.  cycles: level -> cycles by the simulator."""
    target_graph, constants = packed_unit
    parts = tuple(SegmentEntry(len(segment.operators), segment.blocks_of_strips) for segment in segments) if kind == "program" else ()
    variants = tuple(Variant(level, program.streams, "", cycles, parts) for level in cycles)
    container = Container(
        target_graph.graph.digest, target_graph.machine, target_graph.memory, variants, constants, operators(target_graph)
    )
    return Encoded(encode(container), target_graph.machine, kind)
