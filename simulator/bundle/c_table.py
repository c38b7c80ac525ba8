"""`table.h`: the controller's table in C."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simulator.npu.controller_table import ControllerTable, GrantedRow, VariantRow
from simulator.npu.grant import Grant, combined_needs


def table_header(table: ControllerTable, model: str, machine: str) -> bytes:
    """model, machine: digests, for the comment.  Names of levels need no escapes (see `ControllerTable`)."""
    names = [row.name for row in table.variants]
    levels = ["TILEFARM_NONE" if row.variant is None else _u32(row.variant) for row in table.levels]
    all_ = combined_needs(tuple(map(table.needs, range(len(names)))))
    grants = [_grant(all_), *map(_grant, table.granted)]
    rules = [_rule(table, table, ""), *(_rule(table, rule, f"_{number}") for number, rule in enumerate(table.granted, 1))]
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
        *_columns(table, ""),
        f"static const tilefarm_rule tilefarm_thresholds = {_rule(table, table, '')};",
        "",
        "/* what each variant needs, which is never run where less is granted */",
        _array("tilefarm_grant", "tilefarm_needs", "TILEFARM_VARIANTS", map(_grant, table.variants)),
        "",
        "/* rules by what they need, the largest first: of all variants, and of those that fit what some level grants */",
        f"#define TILEFARM_RULES {_u32(len(rules))}",
        *(line for number, rule in enumerate(table.granted, 1) for line in _columns(rule, f"_{number}")),
        _array("tilefarm_grant", "tilefarm_granted", "TILEFARM_RULES", grants),
        _array("tilefarm_rule", "tilefarm_rules", "TILEFARM_RULES", rules),
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


def _columns(rule: ControllerTable | GrantedRow, end: str) -> Iterator[str]:
    yield _array("uint32_t", f"tilefarm_ladder{end}", "", map(_u32, rule.ladder))
    # an array of no elements is not C
    yield _array("uint32_t", f"tilefarm_t_min{end}", "", map(_u32, rule.t_min or (0,)))
    yield _array("uint32_t", f"tilefarm_t_max{end}", "", map(_u32, rule.t_max or (0,)))


def _rule(table: ControllerTable, rule: ControllerTable | GrantedRow, end: str) -> str:
    names = ", ".join(f"tilefarm_{column}{end}" for column in ("ladder", "t_min", "t_max"))
    return f"{{{_u32(len(rule.ladder))}, {names}, {_u64(table.slice_cycles)}}}"


def _grant(of: Grant | VariantRow | GrantedRow) -> str:
    return f"{{{_u64(of.l1_bytes)}, {_u64(of.shared_bytes)}, {_u32(of.cores)}}}"


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
    """Values, six to a line."""
    return ",".join(f"\n{indent}{', '.join(values[i : i + 6])}" for i in range(0, len(values), 6))
