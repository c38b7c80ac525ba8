"""Command `tilefarm machines`: all presets, or every value of one, with unit and provenance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.command import new_app
from simulator.npu.parts import DataType
from simulator.npu.provenance import is_number
from simulator.terminal import print_line
from tuner.cli.options import Json
from tuner.cli.text import print_json, print_pairs, print_table

if TYPE_CHECKING:
    from simulator.npu.machine import Machine
    from simulator.npu.provenance import ValueOrigin

app = new_app()
_UNSAID = "not said"

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
    ("shared.bytes", "B"),
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

    # one machine: the check comes last, so that a faulty file is shown too
    if name is not None:
        machine = load_machine(name)
        (_print_json if as_json else _print_values)(machine)
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


def _print_json(machine: Machine) -> None:
    raw = machine.model_dump(mode="json") | {key: getattr(machine, key).model_dump(mode="json") for key in ("dma", "host")}
    raw["rounding"] = machine.rounding
    derived = {
        "provenance": {key: origin and origin._asdict() for key, _, origin in _origins(machine)},
        "sources": machine.provenance.sources,
        "digest": machine.digest,
        "macs_per_cycle": {dtype: float(macs) for dtype, macs in machine.macs_per_cycle.items()},
        "deliverable_bytes_per_cycle": _deliverable(machine),
        "granted": {level: machine.granted(level)._asdict() for level in machine.contention},
    }
    print_json({**raw, **derived})


def _print_values(machine: Machine) -> None:
    """Print values of the file with provenance, then derived values and titles of sources."""
    print_pairs({"name": machine.name, "description": machine.description})
    print_line()
    rows = [(key, value, _unit(key), *(origin or (_UNSAID if is_number(value) else "", ""))) for key, value, origin in _origins(machine)]
    print_table(("<key", "value", "<unit", "<provenance", "<source, formula or reason"), rows)
    print_line()
    pairs: dict[str, object] = {}
    pairs["ddr, one long run"], pairs["ddr, reads beside writes"] = (f"{rate:.4g} B/cycle" for rate in _deliverable(machine).values())
    pairs |= {f"granted at {level}": granted for level in machine.contention if (granted := _granted(machine, level))}
    pairs["macs_per_cycle (one core)"] = ", ".join(f"{dtype} {float(macs):,.0f}" for dtype, macs in machine.macs_per_cycle.items())
    pairs["digest"] = machine.digest
    print_pairs(pairs | {f"source: {name}": title for name, title in machine.provenance.sources.items()})


def _origins(machine: Machine) -> Iterator[tuple[str, Any, ValueOrigin | None]]:
    """Keys with values and their provenance; None where nothing is said."""
    yield from ((key, value, machine.origins.get(key)) for key, value in machine.values.items())


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


def _unit(key: str) -> str:
    if key.startswith("buffers_bytes."):
        return "B"
    if key.startswith("contention.") and key.endswith(".share"):
        return "of deliverable DDR"
    return next((unit for end, unit in _UNITS if key.endswith(end)), "")
