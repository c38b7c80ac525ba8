"""Stages of the compiler in their order: the one place to read first.

Functions are named and not imported: the table is below all of them, and a command's help needs nothing but the names.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, NamedTuple


class CompilerStage(NamedTuple):
    """Stage of the compiler.  function, dumper: `module:name`.  dumper: returns the lines of `--dump`; "" if `--dump` does not show the
    stage.

    result: input and output of the stage.  shows: content of the dump (docs/dump.md).
    """

    name: str
    function: str
    result: str
    dumper: str = ""
    shows: str = ""

    def dump(self, *result: Any) -> Any:
        """Lines of text, without ends."""
        return resolve_name(self.dumper)(*result)


STAGES = (
    CompilerStage("load", "compiler.frontend.onnx_io.load:load", "ONNX file -> checked, cleaned ModelProto"),
    CompilerStage(
        "graph",
        "compiler.frontend.lower:lower",
        "ModelProto -> Graph, rewritten; what the NPU does not support stays with the host (frontend.partition)",
        "compiler.dump.graph:graph_lines",
        "operators, lowered and rewritten, with shapes and attributes; a constant as its shape and six digits of its values' digest",
    ),
    CompilerStage(
        "unit",
        "compiler.ops.lower_graph:pack_unit",
        "Graph x Machine x data type -> storages, operators, constants, DDR addresses",
        "compiler.dump.target_graph:unit_lines",
        "storages, lanes of every tensor, DDR addresses of weights and tensors, operators with their signatures;"
        " of convolutions in groups, how many times their weights they multiply",
    ),
    CompilerStage(
        "plan",
        "compiler.space.decode:decode_all",
        "genome -> which segments in which order, how many strips and blocks, what stays on chip, every tiling",
        "compiler.dump.plan:plan_lines",
        "every key of the plan, as `tilefarm plan show` prints it",
    ),
    CompilerStage(
        "segments",
        "compiler.segment.segment:Segment.of",
        "SegmentPlan -> shares of cores, strips, rows of every block, places in L1 and UB",
        "compiler.dump.segments:segment_lines",
        "shares of the cores: rows of every block, what stays in L1, address, size and life of every buffer, the most each memory holds;"
        " what lies in the shared memory",
    ),
    CompilerStage(
        "records",
        "compiler.codegen.lower_segment:lower_draft",
        "Segment -> sequential records of one core's share (cached by its plan)",
        "compiler.dump.records:record_lines",
        "the instructions of every core, as `tilefarm disasm` prints them",
    ),
    CompilerStage(
        "order",
        "compiler.schedule.segment_accesses:Footprints.listed",
        "records -> their order, in which engines may overtake waiting records, segment by segment",
    ),
    CompilerStage(
        "stream",
        "compiler.schedule.synchronize:Synchroniser.write",
        "shares -> flags, issue order and places in the shared memory: one stream per core",
    ),
    CompilerStage("program", "compiler.pipeline:Compiler.link", "streams + memory map -> Program, verified"),
    CompilerStage("file", "compiler.build:package", "programs of every level and their cycles -> containers in an ONNX file"),
)
DUMPED = tuple(stage.name for stage in STAGES if stage.dumper)
