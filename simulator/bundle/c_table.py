"""`table.h`: the controller's table in C."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.npu.controller_table import ControllerTable


def table_header(table: ControllerTable, model: str, machine: str) -> bytes:
    """model, machine: digests, for the comment.  Names of levels need no escapes (see `ControllerTable`)."""
    names = [row.name for row in table.variants]
    levels = ["TILEFARM_NONE" if row.variant is None else _u32(row.variant) for row in table.levels]
    lines = [
        f"/* The controller's table of model {model} on machine {machine}. */",
        "#ifndef TILEFARM_TABLE_H",
        "#define TILEFARM_TABLE_H",
        "",
        '#include "controller.h"',
        "",
        f"#define TILEFARM_VARIANTS {_u32(len(names))}",
        f"#define TILEFARM_LEVELS {_u32(len(levels))}",
        f"#define TILEFARM_POINTS {_u32(len(table.grid))}",
        "",
        "/* the threshold rule; variants that are not on the ladder are never chosen */",
        _array("uint32_t", "tilefarm_ladder", "", map(_u32, table.ladder)),
        # an array of no elements is not C
        _array("uint32_t", "tilefarm_t_min", "", map(_u32, table.t_min or (0,))),
        _array("uint32_t", "tilefarm_t_max", "", map(_u32, table.t_max or (0,))),
        "static const tilefarm_rule tilefarm_thresholds = {",
        f"    {_u32(len(table.ladder))}, tilefarm_ladder, tilefarm_t_min, tilefarm_t_max, {_u64(table.slice_cycles)}",
        "};",
        "",
        "/* levels, cheapest first: name, share of the DDR bandwidth in 1/65536, added latency in cycles, variant */",
        _array("char *const", "tilefarm_level", "TILEFARM_LEVELS", (f'"{row.name}"' for row in table.levels)),
        _array("uint32_t", "tilefarm_level_share", "TILEFARM_LEVELS", (_u32(row.share_units) for row in table.levels)),
        _array("uint32_t", "tilefarm_level_latency", "TILEFARM_LEVELS", (_u32(row.latency_cycles) for row in table.levels)),
        _array("uint32_t", "tilefarm_level_variant", "TILEFARM_LEVELS", levels),
        "",
        "/* what an inference with each variant shows at each share of the bandwidth, in 1/65536 */",
        _array("char *const", "tilefarm_variant", "TILEFARM_VARIANTS", (f'"{name}"' for name in names)),
        _array("uint64_t", "tilefarm_ddr_bytes", "TILEFARM_VARIANTS", (_u64(row.ddr_bytes) for row in table.variants)),
        _array("uint32_t", "tilefarm_share", "TILEFARM_POINTS", map(_u32, table.grid)),
        _matrix("tilefarm_cycles", [row.cycles for row in table.variants]),
        _matrix("tilefarm_compute_cycles", [row.compute_cycles for row in table.variants]),
        _matrix("tilefarm_load_store_cycles", [row.load_store_cycles for row in table.variants]),
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines).encode()


def _u32(value: int) -> str:
    return f"{value}u"


def _u64(value: int) -> str:
    return f"UINT64_C({value})"


def _array(kind: str, name: str, size: str, values: Iterable[str]) -> str:
    return f"static const {kind} {name}[{size}] = {{{_rows(list(values), '    ')}\n}};"


def _matrix(name: str, rows: Iterable[Sequence[int]]) -> str:
    inner = ",\n".join(f"    {{{_rows([_u64(value) for value in row], '        ')}\n    }}" for row in rows)
    return f"static const uint64_t {name}[TILEFARM_VARIANTS][TILEFARM_POINTS] = {{\n{inner}\n}};"


def _rows(values: Sequence[str], indent: str) -> str:
    """Six to a line."""
    return ",".join(f"\n{indent}{', '.join(values[i : i + 6])}" for i in range(0, len(values), 6))
