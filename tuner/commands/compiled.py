"""`run`, `simulate`, `disasm`: what a compiled file does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.build import check_out
from simulator.compiled import Compiled, read_compiled
from simulator.feeds import load_feeds, npz_bytes
from simulator.npu.asm import print_program
from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from simulator.npu.machine import SHARE_UNIT, Engine
from simulator.sequence import bound_of_all, simulate_all
from simulator.session import InferenceSession
from simulator.terminal import print_line, print_text
from simulator.timing import Timing
from tuner.check import Checked, check_level, random_feeds
from tuner.commands.options import parse_input
from tuner.commands.text import finite, print_json, print_pieces, print_table
from tuner.reference import Stored, reference
from tuner.summary import TensorSummary
from tuner.values import Compared


def run(path: Path, input_text: str, level: str | None, check: bool, out: Path | None, as_json: bool) -> int:
    """`tilefarm run`.  Returns the exit code: 1 where a check fails."""
    given = parse_input(input_text)
    if out is not None:
        check_out(out)
    session = InferenceSession(path)
    level = level if level is not None else session.levels[0]
    session.compiled.variants(level)
    feeds = random_feeds(session, given) if isinstance(given, int) else load_feeds(given)
    try:
        session.checked(feeds)
    except BadInputError as error:
        raise BadInputError(f"--input {input_text}: {error}") from None
    names = [port.name for port in session.get_outputs()]
    checked: Checked | None = None
    if check:
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        checked = check_level(session, feeds, reference(path, arrays, Stored.of(session.compiled)), level)
    if checked is not None and len(session.compiled.pieces) == 1:
        outputs = {name: checked.values.made[name] for name in names}
    else:  # in a check the second piece is given onnxruntime's inputs
        outputs = dict(zip(names, session.run(names, feeds, level=level), strict=True))
    if out is not None:
        atomic_write(out, [npz_bytes(outputs)])
    report: dict[str, Any] = {
        "level": level,
        "outputs": {name: _described(value) for name, value in outputs.items()},
    }
    if checked is not None:
        beyond = checked.values.beyond
        report["check"] = {
            "ok": checked.ok,
            **_figures(checked.values.worst),
            "compared": {name: _figures(one) for name, one in checked.values.compared.items()},
            "counted": {name: {"equal": one.equal, "of": one.count} for name, one in checked.values.counted.items()},
            "first_beyond": None if beyond is None else TensorSummary.of(beyond, session.compiled.dtype).model_dump(),
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


def _figures(one: Compared) -> dict[str, float | None]:
    rounding = None if one.rounding is None else finite(one.rounding)
    return {"max_rel_error": finite(one.error), "rounding_rel_error": rounding, "limit_rel_error": one.limit}


def _described(value: NDArray[Any]) -> dict[str, Any]:
    """An output in a few numbers; null where it has no values."""
    found: dict[str, Any] = {"shape": list(value.shape), "min": None, "max": None, "mean": None, "argmax": None}
    if value.size:
        found |= {key: finite(float(getattr(value, key)())) for key in ("min", "max", "mean")} | {"argmax": int(value.argmax())}
    return found


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
    for name, one in {**checked.values.compared, **checked.values.counted}.items():
        print_line(f"{'output' if name in report['outputs'] else 'tensor'} {name}: {one}")
    recomputed = f"cycles at {len(checked.cycles)} levels recomputed"
    print_line(f"sanitizer: {len(checked.findings)} findings; {recomputed}; bound {checked.bound_cycles:,}")
    for fault in checked.faults:
        print_line(f"FAILED {fault}")
    print_line(f"check of level {checked.level}: {'passed' if checked.ok else 'FAILED'}")


def simulate_file(path: Path, level: str | None, as_json: bool) -> None:
    """`tilefarm simulate`."""
    compiled = read_compiled(path)
    levels = compiled.levels if level is None else (compiled.variants(level)[0].level,)
    rows = {name: _simulated(compiled, name) for name in levels}
    machine = compiled.machine
    pieces = _pieces(compiled, levels)
    if as_json:
        head = {"file": str(path), "machine": machine.name, "dtype": compiled.dtype.name, "clock_hz": machine.clock_hz}
        print_json({**head, "pieces": pieces, "levels": rows})
        return
    print_line(f"{path}: {machine.name}, {compiled.dtype.name}, {machine.clock_hz / 1e6:,.0f} MHz, cores: {machine.cores}")
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
    if len(pieces) > 1:
        print_line()
        print_line("pieces, which run one after the other; the time of the host between them is in no figure")
        print_pieces(pieces)
    print_line()
    print_line("utilisation: share of the cycles in which the engine works, mean over cores")
    engines = [engine.name for engine in Engine]
    print_table(
        ("<level", *engines), [(name, *(f"{row['engine_utilisation'][e.lower()]:.1%}" for e in engines)) for name, row in rows.items()]
    )


def _simulated(compiled: Compiled, level: str) -> dict[str, Any]:
    """A level's variants at its own share of the bandwidth, one after the other."""
    machine, share = compiled.machine, compiled.share_units(level)
    prepared = compiled.prepared(level)
    timing: Timing = simulate_all(prepared, machine, share)
    check_cycles(compiled, level, timing.cycles)
    busy = timing.busy_cycles.sum(axis=0)
    return {
        "ddr_share": share / SHARE_UNIT,
        "plan": compiled.plan(level),
        "same_as": compiled.same_as(level),
        "cycles": timing.cycles,
        "latency_us": timing.cycles / machine.clock_hz * 1e6,
        "program_bound_cycles": bound_of_all(prepared, machine, share),
        "instructions": timing.instructions,
        "ddr_read_bytes": timing.ddr_read_bytes,
        "ddr_write_bytes": timing.ddr_write_bytes,
        "load_store_cycles": timing.load_store_cycles,
        "compute_cycles": timing.compute_cycles,
        "balance": finite(timing.balance),
        "engine_utilisation": {e.name.lower(): float(busy[e]) / max(1, timing.cycles * machine.cores) for e in Engine},
        "variant_cycles": compiled.cycles(level),
    }


def _pieces(compiled: Compiled, levels: Sequence[str]) -> list[dict[str, Any]]:
    """Name, operators and cycles of every piece; the cycles are the file's, whose sums `_simulated` has checked."""
    found = []
    for piece in compiled.pieces:
        names = [operator.name for operator in piece.container.operators]
        cycles = {level: piece.container.variant(level).cycles[level] for level in levels}
        ends = {"first_operator": names[0] if names else "", "last_operator": names[-1] if names else ""}
        found.append({"piece": piece.name, "operators": len(names), **ends, "cycles": cycles})
    return found


def check_cycles(compiled: Compiled, level: str, cycles: int) -> None:
    """Raise `BadInputError` where the variants of a level take other cycles there than their file says."""
    said = compiled.cycles(level)[level]
    if cycles != said:
        raise BadInputError(f"level {level}: the file says {said:,} cycles, this simulator {cycles:,}; compile it again")


def disassemble(path: Path, level: str | None, core: int | None, out: Path | None) -> None:
    """`tilefarm disasm`."""
    if out is not None:
        check_out(out)
    compiled = read_compiled(path)
    level = level if level is not None else compiled.levels[0]
    machine = compiled.machine
    if core is not None and not 0 <= core < machine.cores:
        raise BadInputError(f"--core {core}: {machine.name} has cores 0..{machine.cores - 1}")
    parts = []
    for piece, variant in zip(compiled.pieces, compiled.variants(level), strict=True):
        whose = f"{piece.name} " if len(compiled.pieces) > 1 else ""
        for at, code in enumerate(variant.streams):
            if core in (None, at):
                parts.append(f"# {machine.name} {compiled.dtype.name} level {level} {whose}core {at}: {len(code)} instructions\n")
                parts.append(print_program(code, numbers=True))
    if out is not None:
        atomic_write(out, [part.encode() for part in parts])
    else:
        for part in parts:
            print_text(part)
