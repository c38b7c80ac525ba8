"""Command `tilefarm machines`: all presets, or every value of one, with units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.command import new_app
from simulator.npu.parts import DataType
from tuner.cli.options import Json
from tuner.cli.text import print_json, print_pairs, print_table

if TYPE_CHECKING:
    from simulator.npu.machine import Machine

app = new_app()

# the end of a key -> the unit of its value
_UNITS = (
    ("bytes_per_cycle", "B/cycle"),
    ("bytes_per_s", "B/s"),
    ("macs_per_s", "MAC/s"),
    ("launch_us", "us"),
    ("_hz", "Hz"),
    ("ddr.outstanding", "transfers of a queue"),
    ("_ports", "transfers at once"),
    ("_bytes", "B"),
    ("_cycles", "cycles"),
    ("cycles_per_fractal.float16", "cycles per 16x16x16"),
    ("cycles_per_fractal.float32", "cycles per 16x8x16"),
    (".m0", "rows at a time"),
    (".k0", "values of each at a time"),
    (".n0", "columns at a time"),
    ("float16.cycles", "cycles per product"),
    ("float32.cycles", "cycles per product"),
    ("passes.float16", "passes of a tile"),
    ("passes.float32", "passes of a tile"),
    ("matrix.rows", "cells"),
    ("matrix.columns", "cells"),
)


@app.command()
def machines(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A preset or a YAML file; all presets unless given.")] = None,
    as_json: Json = False,
) -> None:
    from compiler.target.capabilities import check_machine
    from simulator.npu.machine_file import load_machine, preset_names

    # one machine: every value of its file, then derived values; the check comes last, so that a faulty file is shown too
    if name is not None:
        machine = load_machine(name)
        raw = machine.model_dump(mode="json") | {key: getattr(machine, key).model_dump(mode="json") for key in ("dma", "host")}
        raw["rounding"] = machine.rounding
        if as_json:
            derived = {
                "digest": machine.digest,
                "macs_per_cycle": {dtype: float(macs) for dtype, macs in machine.macs_per_cycle.items()},
                "deliverable_bytes_per_cycle": _deliverable(machine),
                "granted": {level: machine.granted(level)._asdict() for level in machine.contention},
            }
            print_json({**raw, **derived})
            check_machine(machine)
            return
        pairs: dict[str, object] = {}
        for key, value in _flat(raw):
            pairs[key] = f"{value:,} {_unit(key)}".rstrip() if isinstance(value, int) else f"{value} {_unit(key)}".rstrip()
        pairs["ddr, one long run"], pairs["ddr, reads beside writes"] = (f"{rate:.4g} B/cycle" for rate in _deliverable(machine).values())
        pairs |= {f"granted at {level}": granted for level in machine.contention if (granted := _granted(machine, level))}
        pairs["macs_per_cycle (one core)"] = ", ".join(f"{dtype} {float(macs):,.0f}" for dtype, macs in machine.macs_per_cycle.items())
        pairs["digest"] = machine.digest
        print_pairs(pairs)
        check_machine(machine)
        return
    loaded = [load_machine(preset) for preset in preset_names()]
    if as_json:
        print_json(
            [
                {
                    "name": m.name,
                    "description": m.description,
                    "digest": m.digest,
                    "levels": {k: v.model_dump() for k, v in m.contention.items()},
                }
                for m in loaded
            ]
        )
        return
    columns = ("<machine", "cores", "MHz", "MACs/cycle", "L1 B", "DDR B/cycle", "delivers", "<levels", "<description")
    print_table(
        columns,
        [
            (
                m.name,
                m.cores,
                f"{m.clock_hz / 1e6:,.0f}",
                _peak(m),
                m.buffers_bytes.L1,
                f"{m.ddr.bytes_per_cycle:,}",
                f"{float(m.ddr.deliverable):,.4g}",
                " ".join(f"{name}={str(level).replace(' +', '+').replace(' ', ',')}" for name, level in m.contention.items()),
                m.description,
            )
            for m in loaded
        ],
    )


def _peak(machine: Machine) -> str:
    """Multiply-accumulates per cycle of all cores, in float16; in int8 on a machine without floats."""
    unit = "" if "float16" in machine.macs_per_cycle else " int8"
    return f"{int(machine.peak(DataType.float16) * machine.cores):,}{unit}"


def _deliverable(machine: Machine) -> dict[str, float]:
    """Bytes per cycle of DDR without contention."""
    return {"one_run": float(machine.ddr.deliverable), "reads_beside_writes": float(machine.ddr.turned)}


def _granted(machine: Machine, level: str) -> str:
    """Memory and cores that a level leaves of the machine, where less than all."""
    return ", ".join(
        f"{amount:,} {resource} of {total:,}" for amount, resource, total in machine.granted(level).smaller_sizes(machine.full_grant)
    )


def _flat(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif key == "paths":
            for path in value:
                shown = f"{path['bytes_per_cycle']} B/cycle, granule {path['granule_bytes']} B, startup {path['startup_cycles']} cycles"
                yield f"paths.{path['source']}->{path['destination']}", f"{path['engine']}, {shown}"
        else:
            yield prefix + key, value


def _unit(key: str) -> str:
    if key.startswith("buffers_bytes."):
        return "B"
    if key.startswith("contention.") and key.endswith(".share"):
        return "of the deliverable DDR bandwidth"
    return next((unit for end, unit in _UNITS if key.endswith(end)), "")
