"""`log verify|repair|compact|migrate` and `schema`: the files of a run as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.candidate import SCHEMA_VERSION
from tuner.commands.text import print_json
from tuner.log.care import compact, lost_rows, repair, verify
from tuner.log.dataset import Fault
from tuner.log.migrate import migrate


def _print(run: Path, faults: list[Fault], nothing: str, as_json: bool) -> None:
    if as_json:
        told = [{"file": fault.file, "what": fault.what} for fault in faults]
        print_json({"run": str(run), "faults": told, "lost_rows": lost_rows(run)})
        return
    for fault in faults:
        print_line(f"{fault.file}: {fault.what}")
    if not faults:
        print_line(f"{run}: {nothing}")
    _print_lost(run)


def _print_lost(run: Path) -> None:
    for name, count in lost_rows(run).items():
        print_line(f"{name}: {count:,} rows were lost")


def verify_log(run: Path, as_json: bool) -> int:
    """`tilefarm log verify`.  Returns 1 where something is wrong."""
    faults = verify(run)
    _print(run, faults, "every part can be read, every row fits", as_json)
    return int(bool(faults))


def repair_log(run: Path, as_json: bool) -> None:
    """`tilefarm log repair`."""
    _print(run, repair(run), "nothing to repair", as_json)


def compact_log(run: Path, out: Path, as_json: bool) -> None:
    """`tilefarm log compact`."""
    rows = compact(run, out)
    if as_json:
        print_json({"out": str(out), "rows": rows, "lost_rows": lost_rows(out)})
        return
    print_line(f"{out}: " + ", ".join(f"{count:,} rows of {name}" for name, count in rows.items()))
    _print_lost(out)


def migrate_log(run: Path, out: Path, as_json: bool) -> None:
    """`tilefarm log migrate`."""
    done = migrate(run, out)
    if as_json:
        print_json({"out": str(out), "schema_version": SCHEMA_VERSION, **{name: result._asdict() for name, result in done.items()}})
        return
    for name, result in done.items():
        change = (
            f"was schema {SCHEMA_VERSION} already" if result.version == SCHEMA_VERSION else f"schema {result.version} to {SCHEMA_VERSION}"
        )
        print_line(f"{out / name}: {result.rows:,} rows, {change}")
    _print_lost(out)


def print_schema(name: str) -> None:
    """`tilefarm schema`: the JSON Schema of a file that people write or read."""
    from compiler.plan.plan import Plan
    from simulator.npu.machine import Machine
    from tuner.config import TuneConfig
    from tuner.summary import Summary

    models: dict[str, Any] = {"config": TuneConfig, "machine": Machine, "plan": Plan, "summary": Summary}
    if name not in models:
        raise BadInputError(f"schema {name!r}: expected one of {', '.join(models)}")
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **models[name].model_json_schema()})
