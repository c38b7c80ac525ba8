"""`compile` and `export`: plans in, a compiled ONNX out, and what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.beyond import beyond_lines
from compiler.build import MeasuredModel, check_out, containers_of, default_plans, measure, package
from compiler.plan.plan import Plan, joined
from compiler.source import Opened, Source, open_source
from simulator.npu.errors import BadInputError
from simulator.npu.machine import DataType, load_machine
from simulator.terminal import print_line
from tuner.commands.options import parse_plans, parse_shapes
from tuner.commands.text import print_json, print_pieces, print_table
from tuner.export import open_run, run_plans
from tuner.host import check_share, host_nodes, mac_share, work_lines
from tuner.macs import program_macs
from tuner.model.tile_model import load_models, tiled_plans
from tuner.request import Style
from tuner.summary import TensorSummary


def compile_model(
    model: Path,
    machine_name: str,
    plan_texts: Sequence[str],
    dtype: str,
    style: Style,
    shape_texts: Sequence[str],
    random_weights: int | None,
    tile_model: Path | None,
    min_npu_share: float | None,
    out: Path,
    as_json: bool,
) -> None:
    """`tilefarm compile`."""
    check_out(out)
    if tile_model is not None and plan_texts:
        raise BadInputError("--tile-model: chooses the tilings, so it does not go with --plan")
    machine = load_machine(machine_name)
    files = parse_plans(plan_texts, tuple(machine.contention), machine.name)
    read = {path: Plan.load(path) for path in dict.fromkeys(files.values())}
    opened = open_source(Source(model, machine, DataType[dtype], parse_shapes(shape_texts), random_weights))
    check_share(opened, min_npu_share)
    if tile_model is not None:
        models = load_models(tile_model, opened.units[0])
        tiled = {name: tiled_plans(compiler, models) for name, compiler in zip(opened.names, opened.compilers, strict=True)}
        plans = {level: joined({name: each[level] for name, each in tiled.items()}) for level in machine.contention}
    else:
        plans = {level: read[path] for level, path in files.items()} or dict.fromkeys(machine.contention, default_plans(opened))
    _write(opened, plans, out, style, as_json, {level: str(path) for level, path in files.items()})


def export(run: Path, digest: str | None, folder: Path | None, style: Style | None, out: Path, as_json: bool) -> None:
    """`tilefarm export`."""
    check_out(out)
    opened, saved = open_run(run)
    _write(opened, run_plans(run, opened.machine, digest, folder), out, style or saved.style, as_json, {})


def _write(opened: Opened, plans: Mapping[str, Plan], out: Path, style: Style, as_json: bool, names: Mapping[str, str]) -> None:
    measured = measure(opened, plans, names)
    containers = containers_of(opened, measured)
    container_bytes = package(opened, containers, out, style)
    machine = opened.machine
    first_with = {m.digest: level for level, m in reversed(measured.items())}
    share = mac_share(opened)
    levels: dict[str, Any] = {}
    for level, m in measured.items():
        levels[level] = {
            "ddr_share": machine.contention[level],
            "plan": m.plan.digest,
            "same_as": None if first_with[m.digest] == level else first_with[m.digest],
            "segments": len(m.plan.segments),
            "instructions": m.instructions,
            "cycles": m.timings[level].cycles,
            "latency_us": m.timings[level].cycles / machine.clock_hz * 1e6,
            "program_bound_cycles": m.bound(machine, level),
            "ddr_bytes": m.timings[level].ddr_read_bytes + m.timings[level].ddr_write_bytes,
            "executed_macs": sum(map(program_macs, m.programs)),
            "variant_cycles": {at: timing.cycles for at, timing in m.timings.items()},
        }
    report = {
        "out": str(out),
        "model": opened.name,
        "model_digest": opened.digest,
        "machine": machine.name,
        "machine_digest": machine.digest,
        "dtype": opened.source.dtype.name,
        "style": style,
        "notes": list(opened.notes),
        "macs": share.total,
        "npu_mac_share": share.share,
        "host": [node.model_dump() for node in host_nodes(opened)],
        "weights_beyond": [TensorSummary.of(weight, opened.source.dtype).model_dump() for weight in opened.weights_beyond],
        "operators": sum(len(unit.kernels) for unit in opened.units),
        "pieces": _pieces(opened, measured),
        "container_bytes": container_bytes,
        "file_bytes": out.stat().st_size,
        "levels": levels,
    }
    if as_json:
        print_json(report)
    else:
        lines = [*work_lines(opened), *beyond_lines(opened.weights_beyond, opened.source.dtype)]
        _print(report, [f"{report['operators']} operators, {share}", *lines], levels)


def _pieces(opened: Opened, measured: Mapping[str, MeasuredModel]) -> list[dict[str, Any]]:
    """Name, operators and cycles of every piece."""
    return [
        {
            "piece": name,
            "operators": len(unit.kernels),
            "first_operator": unit.kernels[0].name,
            "last_operator": unit.kernels[-1].name,
            "cycles": {level: m.pieces[k].timings[level].cycles for level, m in measured.items()},
        }
        for k, (name, unit) in enumerate(zip(opened.names, opened.units, strict=True))
    ]


def _print(report: Mapping[str, Any], work: Sequence[str], levels: Mapping[str, Mapping[str, Any]]) -> None:
    """work: lines on what the NPU does and what not."""
    print_line(f"{report['model']} on {report['machine']}, {report['dtype']}: {work[0]}")
    for line in work[1:]:
        print_line(line)
    columns = ("<level", "DDR share", "<variant", "segments", "instructions", "cycles", "latency us", "bound cycles", "DDR bytes")
    print_table(
        columns,
        [
            (
                level,
                f"{row['ddr_share']:g}",
                f"as {row['same_as']}" if row["same_as"] else row["plan"][:12],
                row["segments"],
                row["instructions"],
                row["cycles"],
                f"{row['latency_us']:,.1f}",
                row["program_bound_cycles"],
                row["ddr_bytes"],
            )
            for level, row in levels.items()
        ],
    )
    print_pieces(report["pieces"])
    sizes = f"{report['file_bytes']:,} bytes, {report['container_bytes']:,} of them the container"
    print_line(f"{report['out']}: {sizes}, style {report['style']}")
