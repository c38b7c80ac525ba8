"""Compiled ONNX file from plans, and its report; imports nothing that reads runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from compiler.build import MeasuredModel, containers_of, measure, package, same_programs
from compiler.diagnostics.float_range import out_of_range_lines
from compiler.frontend.partition.node_counts import count_nodes
from compiler.frontend.partition.partition import Partition
from compiler.model import LoweredModel, ModelSpec
from compiler.package.onnx_out import write_packed
from compiler.plan.plan import Plan
from simulator.compiled import Compiled, CompiledPiece
from simulator.npu.files import atomic_write
from simulator.objective import Pace
from simulator.onnx_names import Style
from tuner.finalize.packagers import package_plans
from tuner.measure.host import host_nodes, mac_share, work_lines
from tuner.measure.host_lines import host_lines
from tuner.measure.macs import program_macs
from tuner.measure.relayouts import relayout_cost
from tuner.summary import TensorSummary


class CompiledReport(NamedTuple):
    """Compiled model with its report.  values: report as JSON.  lines: text on the work of NPU and host."""

    compiled: Compiled
    values: dict[str, Any]
    lines: tuple[str, ...]


def write_compiled(
    lowered: LoweredModel, plans: Mapping[str, Plan], out: Path | None, style: Style, names: Mapping[str, str] | None = None
) -> CompiledReport:
    """Write the file with a plan for every level, if `out` is given.  names: level -> file of the plan, for errors."""
    measured = measure(lowered, plans, names)
    compiled = Compiled(tuple(map(CompiledPiece, lowered.names, containers_of(lowered, measured))))
    container_bytes = None if out is None else package(lowered, [piece.container for piece in compiled.pieces], out, style)
    share, dtype = mac_share(lowered.part), lowered.source.dtype
    level = next(iter(measured))
    relayouts = relayout_cost(lowered, measured[level], level)
    values = {  # JSON of `compile --json` and `export --json`
        "out": None if out is None else str(out),
        "model": lowered.name,
        "model_digest": lowered.digest,
        "machine": lowered.machine.name,
        "machine_digest": lowered.machine.digest,
        "dtype": dtype.name,
        "computes": lowered.computes,
        "style": style,
        "notes": list(lowered.notes),
        "frames": lowered.frames,
        "macs": share.total,
        "npu_mac_share": share.share,
        "nodes": count_nodes(lowered.part)._asdict(),
        "grouped": None if lowered.grouped is None else lowered.grouped._asdict(),
        "host": [node.model_dump() for node in host_nodes(lowered.part, lowered.machine)],
        "weights_beyond": [TensorSummary.of(weight, dtype).model_dump() for weight in lowered.weights_beyond],
        "operators": sum(len(target_graph.operators) for target_graph in lowered.target_graphs),
        "pieces": compiled.piece_rows(list(measured)),
        "relayouts": None if relayouts is None else {"level": level, **relayouts.row()},
        "container_bytes": container_bytes,
        "file_bytes": None if out is None else out.stat().st_size,
        "levels": _levels(lowered, measured),
    }
    lines = (share, *work_lines(lowered), *([relayouts] if relayouts else []), *out_of_range_lines(lowered.weights_beyond, dtype))
    return CompiledReport(compiled, values, tuple(map(str, lines)))


def write_stack_file(lowered: LoweredModel, plans: Mapping[str, Plan], out: Path, names: Mapping[str, str] | None = None) -> CompiledReport:
    """Write the files of a part's own stack: `out`, and others of its name beside it.  The report's levels are the NPU's."""
    report = write_compiled(lowered, plans, None, "function", names)
    packaged = package_plans(lowered, plans)
    for suffix, content in packaged.files.items():
        atomic_write(out.with_suffix(suffix), [content])
    return report._replace(lines=(*report.lines, *packaged.lines))


def write_for_host(part: Partition, source: ModelSpec, reason: str, out: Path) -> CompiledReport:
    """Write a model without any NPU part, unchanged.  reason: the reason, for the report."""
    write_packed([], part, out)
    host = host_nodes(part, source.machine)
    values: dict[str, Any] = {
        "out": str(out), "model": source.model.stem, "machine": source.machine.name, "dtype": source.dtype.name, "why": reason,
        "npu_mac_share": mac_share(part).share, "host": [node.model_dump() for node in host], "operators": 0, "pieces": [],
        "container_bytes": 0, "file_bytes": out.stat().st_size, "levels": {},
    }  # fmt: skip
    return CompiledReport(Compiled(()), values, (f"{reason}; the file is the model itself, run by the host", *host_lines(host)))


def _levels(lowered: LoweredModel, measured: dict[str, MeasuredModel]) -> dict[str, dict[str, Any]]:
    machine, twins = lowered.machine, same_programs(measured)
    return {
        level: {
            "ddr": machine.contention[level].model_dump(),
            "plan": m.plan.digest,
            "same_as": twins[level],
            "segments": len(m.plan.segments),
            "instructions": m.instructions,
            "cycles": m.timings[level].cycles,
            **Pace.of(m.timings[level].cycles, lowered.frames, machine.clock_hz)._asdict(),
            "program_bound_cycles": m.bound(machine, level),
            "ddr_bytes": m.timings[level].ddr_read_bytes + m.timings[level].ddr_write_bytes,
            "executed_macs": sum(map(program_macs, m.programs)),
            "variant_cycles": {name: m.timings[name].cycles if name in m.timings else None for name in measured},
        }
        for level, m in measured.items()
    }
