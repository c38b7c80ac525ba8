"""Robust program, for a person: three figures for each level, and whether variants pay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def robust_columns(robust: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns of `robust_rows`; names of text columns begin with `<`.  robust: entry of a summary."""
    return "<level", f"made for {robust['one_level']}", "over own", "robust", "over own", "own", "<ships"


def robust_rows(summary: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Row per level: cycles of the lightest level's champion, of the robust program and of the level's own champion, and what ships."""
    robust, rows = summary["robust"], list[tuple[object, ...]]()
    for level, own_cycles in robust["own_cycles"].items():
        single_level, all_levels = robust["one_level_cycles"][level], robust["cycles"][level]
        loss = "does not fit" if single_level is None else f"{single_level / own_cycles - 1:+.1%}"
        rows.append((level, single_level, loss, all_levels, f"{all_levels / own_cycles - 1:+.1%}", own_cycles, _ships(summary, level)))
    return rows


def _ships(summary: Mapping[str, Any], level: str) -> str:
    robust, plan = summary["robust"], summary["levels"][level]["plan"]
    if plan == robust["own_plan"][level]:
        return "own"
    if plan == robust["plan"]:
        return "robust"
    return f"own of {next(owner for owner, own_plan in robust['own_plan'].items() if own_plan == plan)}"


def robust_lines(summary: Mapping[str, Any]) -> list[str]:
    """Lines: whether variants pay; displaced variants, their cost, and the risk that they avoid."""
    robust = summary["robust"]
    if robust is None:
        return [f"Variants are needed for {summary['model']} on {summary['machine']}: no program fits every level."]
    lines = [robust["says"]]
    for displaced in robust["displaced"]:
        level, ships = displaced["level"], _ships(summary, displaced["level"])
        program = "robust program" if ships == "robust" else ships.replace("own", "program", 1)
        cost = summary["levels"][level]["cycles"] / robust["own_cycles"][level] - 1
        insured = f"the displaced one would lose {displaced['over']:.1%} with {displaced['condition']}"
        lines.append(f"{level}: the {program} ships, {cost:.1%} slower than the champion as described; {insured}")
    return [*lines, *([robust["not_judged"]] if robust["not_judged"] is not None else [])]
