"""`run`, `simulate`, `disasm`: what a compiled file does."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.npu.asm import print_program
from simulator.npu.container import Container, Variant, decode, program
from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from simulator.npu.machine import SHARE_UNIT, Engine
from simulator.onnx_container import read_container
from simulator.session import InferenceSession
from simulator.timing import Timing, prepare, program_bound, simulate
from tuner.build import check_out
from tuner.check import Checked, check_level, load_feeds, random_feeds
from tuner.commands.options import parse_input
from tuner.commands.text import finite, print_json, print_table
from tuner.reference import reference


def run(path: Path, input_text: str, level: str | None, check: bool, out: Path | None, as_json: bool) -> int:
    """`tilefarm run`.  Returns the exit code: 1 where a check fails."""
    given = parse_input(input_text)
    if out is not None:
        check_out(out)
    session = InferenceSession(path)
    level = level if level is not None else session.levels[0]
    session.container.variant(level)
    feeds = random_feeds(session, given) if isinstance(given, int) else load_feeds(given)
    try:
        session.checked(feeds)
    except BadInputError as error:
        raise BadInputError(f"--input {input_text}: {error}") from None
    checked: Checked | None = None
    if check:
        checked = check_level(session, feeds, reference(path, {name: np.asarray(value) for name, value in feeds.items()}), level)
        outputs = checked.outputs
    else:
        names = [port.name for port in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, feeds, level), strict=True))
    if out is not None:
        atomic_write(out, [npz_bytes(outputs)])
    report: dict[str, Any] = {
        "level": level,
        "outputs": {name: _described(value) for name, value in outputs.items()},
    }
    if checked is not None:
        report["check"] = {
            "ok": checked.ok,
            "max_rel_error": finite(checked.max_rel_error),
            "tolerance": checked.tolerance,
            "findings": list(checked.findings),
            "variant_cycles": dict(checked.table_cycles),
            "recomputed_cycles": dict(checked.cycles),
            "program_bound_cycles": checked.bound_cycles,
            "faults": list(checked.faults),
        }
    if as_json:
        print_json(report)
    else:
        _print_run(report, checked)
    return 0 if checked is None or checked.ok else 1


def _described(value: NDArray[Any]) -> dict[str, Any]:
    """An output in a few numbers; null where it has no values."""
    found: dict[str, Any] = {"shape": list(value.shape), "min": None, "max": None, "mean": None, "argmax": None}
    if value.size:
        found |= {key: finite(float(getattr(value, key)())) for key in ("min", "max", "mean")} | {"argmax": int(value.argmax())}
    return found


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """An .npz file: equal arrays give equal bytes, and any name will do (`numpy.savez` keeps some for itself)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, array in arrays.items():
            with file.open(zipfile.ZipInfo(f"{name}.npy"), "w") as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _print_run(report: Mapping[str, Any], checked: Checked | None) -> None:
    columns = ("<output", "<shape", "min", "max", "mean", "argmax")
    rows = []
    for name, row in report["outputs"].items():
        none = "nan or inf" if all(row["shape"]) else ""
        numbers = (none if row[key] is None else f"{row[key]:.6g}" for key in ("min", "max", "mean"))
        rows.append((name, "x".join(map(str, row["shape"])), *numbers, row["argmax"]))
    print_table(columns, rows)
    if checked is None:
        return
    for name, error in checked.errors.items():
        print(f"output {name}: max|out-ref|/max|ref| {error:.3g} against onnxruntime, at most {checked.tolerance:g}")
    print(f"sanitizer: {len(checked.findings)} findings; cycles at {len(checked.cycles)} levels recomputed; bound {checked.bound_cycles:,}")
    for fault in checked.faults:
        print(f"FAILED {fault}")
    print(f"check of level {checked.level}: {'passed' if checked.ok else 'FAILED'}")


def simulate_file(path: Path, level: str | None, as_json: bool) -> None:
    """`tilefarm simulate`."""
    container = decode(read_container(path))
    levels = container.levels if level is None else (container.variant(level).level,)
    rows = {name: _simulated(container, name) for name in levels}
    machine = container.machine
    if as_json:
        print_json(
            {"file": str(path), "machine": machine.name, "dtype": container.dtype.name, "clock_hz": machine.clock_hz, "levels": rows}
        )
        return
    print(f"{path}: {machine.name}, {container.dtype.name}, {machine.clock_hz / 1e6:,.0f} MHz, cores: {machine.cores}")
    columns = (
        "<level",
        "DDR share",
        "<variant",
        "cycles",
        "latency us",
        "bound cycles",
        "of bound",
        "DDR read B",
        "DDR write B",
        "balance",
    )
    print_table(
        columns,
        [
            (
                name,
                f"{row['ddr_share']:g}",
                f"as {row['same_as']}" if row["same_as"] else (row["plan"][:12] or "no plan"),
                row["cycles"],
                f"{row['latency_us']:,.1f}",
                row["program_bound_cycles"],
                f"{row['cycles'] / row['program_bound_cycles']:.2f}" if row["program_bound_cycles"] else "",
                row["ddr_read_bytes"],
                row["ddr_write_bytes"],
                "inf" if row["balance"] is None else f"{row['balance']:.3f}",
            )
            for name, row in rows.items()
        ],
    )
    print("\nutilisation: share of the cycles in which the engine works, mean over cores")
    engines = [engine.name for engine in Engine]
    print_table(
        ("<level", *engines), [(name, *(f"{row['engine_utilisation'][e.lower()]:.1%}" for e in engines)) for name, row in rows.items()]
    )


def _simulated(container: Container, level: str) -> dict[str, Any]:
    """A level's variant at its own share of the bandwidth."""
    machine, variant = container.machine, container.variant(level)
    prepared = prepare(program(container, level), machine)
    timing: Timing = simulate(prepared, machine, variant.share_units)
    check_cycles(variant, timing.cycles)
    busy = timing.busy_cycles.sum(axis=0)
    return {
        "ddr_share": variant.share_units / SHARE_UNIT,
        "plan": variant.plan_digest,
        "same_as": container.same_as(level),
        "cycles": timing.cycles,
        "latency_us": timing.cycles / machine.clock_hz * 1e6,
        "program_bound_cycles": program_bound(prepared, machine, variant.share_units),
        "instructions": timing.instructions,
        "ddr_read_bytes": timing.ddr_read_bytes,
        "ddr_write_bytes": timing.ddr_write_bytes,
        "load_store_cycles": timing.load_store_cycles,
        "compute_cycles": timing.compute_cycles,
        "balance": finite(timing.balance),
        "engine_utilisation": {e.name.lower(): float(busy[e]) / max(1, timing.cycles * machine.cores) for e in Engine},
        "variant_cycles": dict(variant.cycles),
    }


def check_cycles(variant: Variant, cycles: int) -> None:
    """Raise `BadInputError` where a variant takes other cycles at its own level than its file says."""
    said = variant.cycles[variant.level]
    if cycles != said:
        raise BadInputError(f"level {variant.level}: the file says {said:,} cycles, this simulator {cycles:,}; compile it again")


def disassemble(path: Path, level: str | None, core: int | None, out: Path | None) -> None:
    """`tilefarm disasm`."""
    if out is not None:
        check_out(out)
    container = decode(read_container(path))
    variant = container.variant(level if level is not None else container.levels[0])
    if core is not None and not 0 <= core < len(variant.streams):
        raise BadInputError(f"--core {core}: {container.machine.name} has cores 0..{len(variant.streams) - 1}")
    parts = []
    for at, code in enumerate(variant.streams):
        if core in (None, at):
            parts.append(f"# {container.machine.name} {container.dtype.name} level {variant.level} core {at}: {len(code)} instructions\n")
            parts.append(print_program(code, numbers=True))
    if out is not None:
        atomic_write(out, [part.encode() for part in parts])
    else:
        for part in parts:
            print(part, end="")
