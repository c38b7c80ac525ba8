"""README of a bundle: `readme.md` beside this file, filled in for one model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from simulator.bundle.bundle_files import MEMORY, PartEntry, package_file
from simulator.compiled import Compiled
from simulator.npu.controller_table import RHO_UNIT, ControllerTable
from simulator.npu.isa import OPS, WORDS, P
from simulator.npu.level import SHARE_UNIT
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory


def readme(compiled: Compiled, table: ControllerTable, parts: Sequence[PartEntry]) -> bytes:
    facts = {
        "model": compiled.model_digest,
        "machine": compiled.machine.name,
        "machine_digest": compiled.machine.digest,
        "dtype": compiled.dtype.name,
        "pieces": _pieces(compiled),
        "parts": _table(("part", "bytes", "SHA-256"), ((f"`{part.path}`", part.size_bytes, f"`{part.sha256}`") for part in parts)),
        "levels": _levels(table),
        "needs": _needs(table),
        "thresholds": _thresholds(table),
        "response": _response(table),
        "opcodes": _table(
            ("number", "opcode", "words from 10 on"), ((int(op), op.name, ", ".join(spec.params)) for op, spec in OPS.items())
        ),
        "engines": _numbers(Engine),
        "memories": _numbers(Memory),
        "types": _numbers(DataType),
        "block_bytes": BLOCK_BYTES,
        "record_bytes": 4 * WORDS,
        "words": WORDS,
        "first_parameter": P,
        "last_parameter": WORDS - 2,
        "block_word": WORDS - 1,
    }
    # `{{name}}` in the template is the fact of that name
    text = package_file("readme.md").decode()
    for name, value in facts.items():
        text = text.replace(f"{{{{{name}}}}}", str(value))
    return text.encode()


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _numbers(kind: type[IntEnum]) -> str:
    return ", ".join(f"{int(value)} {value.name}" for value in kind)


def _pieces(compiled: Compiled) -> str:
    count = len(compiled.pieces)
    if count == 1:
        return (
            "The NPU runs one piece of the model, `piece0`.\n"
            "What the model does before and behind it, if anything, is the host's, and is not in this bundle."
        )
    return (
        f"The NPU runs the model in {count} pieces, `piece0` to `piece{count - 1}`, one after the other, all with one variant.\n"
        f"Each has a DDR image of its own; inputs and outputs in `{MEMORY}` have the names of the model's tensors.\n"
        "What the model does between the pieces is the host's, and is not in this bundle."
    )


def _levels(table: ControllerTable) -> str:
    rows = ((row.name, f"{row.share_units / SHARE_UNIT:.4g}", row.latency_cycles, _variant(table, row.variant)) for row in table.levels)
    return _table(("level", "share of the DDR bandwidth", "added latency in cycles", "variant"), rows)


def _needs(table: ControllerTable) -> str:
    rows = ((f"{v}: {row.name}", row.l1_bytes, row.shared_bytes, row.cores) for v, row in enumerate(table.variants))
    return _table(("variant", "bytes of L1, on every core", "bytes of shared memory", "cores"), rows)


def _variant(table: ControllerTable, variant: int | None) -> str:
    return "none: never chosen" if variant is None else f"{variant}: {table.variants[variant].name}"


def _thresholds(table: ControllerTable) -> str:
    if len(table.ladder) == 1:
        return f"The ladder has one variant, {table.variants[table.ladder[0]].name}: the rule always chooses it."
    names = [table.variants[v].name for v in table.ladder]
    rows = zip(names, names[1:], table.t_min, table.t_max, strict=False)
    cells = ((f"{a} to {b}", f"{low} ({low / RHO_UNIT:.4g})", f"{high} ({high / RHO_UNIT:.4g})") for a, b, low, high in rows)
    wait = f"A switch waits until inferences have agreed for {table.slice_cycles} cycles, and for one inference at least."
    return f"{_table(('border', 'heavier below', 'lighter from'), cells)}\n\n{wait}"


def _response(table: ControllerTable) -> str:
    columns = ["share", "slowness"]
    for row in table.variants:
        columns += [f"{row.name} cycles", f"{row.name} compute", f"{row.name} load-store"]
    rows = []
    for k, share in enumerate(table.grid):
        cells: list[object] = [share, f"{SHARE_UNIT / share:.4f}"]
        for row in table.variants:
            cells += [row.cycles[k], row.compute_cycles[k], row.load_store_cycles[k]]
        rows.append(cells)
    bytes_of = ", ".join(f"{row.name} {row.ddr_bytes}" for row in table.variants)
    return f"{_table(columns, rows)}\n\nBytes on DDR of an inference (`ddr_bytes`): {bytes_of}."
