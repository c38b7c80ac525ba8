"""What each rewrite is worth: how often it fires, and what is lost when it alone is switched off.

For every network and every rule that fires on it: the graph lowered without that rule, compiled layer by layer and simulated, against the
graph with all rules.  A positive figure is what the rule saves.  Rules stand in for each other, so savings do not add up.  The last line
of a network says what is spent on copies: operators that the layout had to insert, and cycles of VCOPY anywhere.

Sibling convolutions (`compiler/rewrites/siblings.py`) are none of the rules: the line `(siblings)` says what merging the families saves
that are faster at every level when merged alone.

    python scripts/study_rewrites.py --out rewrites.csv --networks light:squeezenet,made:mobilenet_v2
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compiler.frontend import load_model
from compiler.frontend.lower import rewritten, translated
from compiler.frontend.made import NETWORKS
from compiler.frontend.zoo import MADE, resolve, shipped
from compiler.ir.graph import Graph
from compiler.kinds.build import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.rewrites.rules import LAST_RULES
from compiler.rewrites.siblings import families, merge_siblings
from compiler.space.starts import layer_by_layer
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.errors import TilefarmError
from simulator.npu.isa import Op
from simulator.npu.machine import DataType, Machine, load_machine
from simulator.timing import simulate_levels
from tuner.commands.text import print_table

CONVOLUTIONAL = tuple(MADE + name for name in NETWORKS if not name.startswith(("bert", "vit")))


class Outcome(NamedTuple):
    """A network, lowered with some rules, layer by layer.  copies: operators that the layout inserted."""

    fired: dict[str, int]
    kernels: int
    cycles: dict[str, int]
    ddr_bytes: int
    copies: int
    copy_cycles: int


def outcome(graph: Graph, machine: Machine, dtype: DataType, without: str = "") -> Outcome | str:
    """What comes out of a graph that is not rewritten yet, or why nothing does."""
    try:
        lowered, report = rewritten(graph, {without})
        return measured(lowered, machine, dtype, report.fired)
    except TilefarmError as error:
        return str(error)


def measured(graph: Graph, machine: Machine, dtype: DataType, fired: dict[str, int]) -> Outcome | str:
    """A graph that is rewritten, layer by layer."""
    unit = make_unit(graph, machine, dtype)
    plan = layer_by_layer(unit)
    if isinstance(plan, Infeasible):
        return str(plan)
    program = Compiler(unit).compile(plan)
    if isinstance(program, Infeasible):
        return str(program)
    timings = simulate_levels(program, machine)
    copies = [code[code[:, isa.OP] == int(Op.VCOPY)] for code in program.streams]
    copy_cycles = sum(int(price(code, machine).busy.sum()) for code in copies if len(code))
    first = next(iter(timings.values()))
    moved = first.ddr_read_bytes + first.ddr_write_bytes
    cycles = {level: timing.cycles for level, timing in timings.items()}
    return Outcome(fired, len(unit.kernels), cycles, moved, len(unit.layout.copies), copy_cycles)


def siblings(graph: Graph, base: Outcome, machine: Machine, dtype: DataType, deadline: float) -> dict[str, Any]:
    """Sibling convolutions as one: each family is tried alone, and those that are faster at every level are taken together."""
    lowered, _ = rewritten(graph)
    found = families(lowered)
    paying, late = [], 0
    for family in found:
        if time.perf_counter() > deadline:
            late += 1
            continue
        alone = measured(merge_siblings(lowered, [family]), machine, dtype, {})
        if isinstance(alone, Outcome) and all(alone.cycles[level] < cycles for level, cycles in base.cycles.items()):
            paying.append(family)
    note = f"{len(paying)} of {len(found)} families pay" + (f", {late} not tried" if late else "")
    row: dict[str, Any] = {"rule": "(siblings)", "fired": len(paying), "note": note}
    both = measured(merge_siblings(lowered, paying), machine, dtype, {}) if paying else "none"
    return row if isinstance(both, str) else row | saved(both, base)


def saved(now: Outcome, before: Outcome) -> dict[str, Any]:
    """What `now` saves against `before`; negative where it costs."""
    row: dict[str, Any] = {"kernels_saved": before.kernels - now.kernels, "ddr_bytes_saved": before.ddr_bytes - now.ddr_bytes}
    return row | {f"cycles_{level}": before.cycles[level] - value for level, value in now.cycles.items()}


def study(network: str, machine: Machine, dtype: DataType, rules: tuple[str, ...], deadline: float) -> list[dict[str, Any]]:
    """A row per rule that fired, and the row `all rules` that they are compared with."""
    path, seed = resolve(Path(network), None)
    graph = translated(load_model(path, random_weights=seed), "0" * 32)
    base = outcome(graph, machine, dtype)
    if isinstance(base, str):
        return [{"network": network, "rule": "all rules", "note": base}]
    whole = {f"cycles_{level}": value for level, value in base.cycles.items()}
    rows: list[dict[str, Any]] = []
    for rule in rules:
        if not base.fired.get(rule):
            continue
        row: dict[str, Any] = {"network": network, "rule": rule, "fired": base.fired[rule]}
        rows.append(row)
        if time.perf_counter() > deadline:
            row["note"] = "out of time"
            continue
        other = outcome(graph, machine, dtype, rule)
        if isinstance(other, str):
            row["note"] = f"without it: {other}"
            continue
        row |= saved(base, other)
    rows.append({"network": network, **siblings(graph, base, machine, dtype, deadline)})
    last = {"network": network, "rule": "all rules", "kernels": base.kernels, "ddr_bytes": base.ddr_bytes, **whole}
    return [*rows, {**last, "copies": base.copies, "copy_cycles": base.copy_cycles}]


def show(rows: list[dict[str, Any]], levels: list[str]) -> None:
    """Savings of rules as shares of the whole; what is whole in full."""
    wholes = {row["network"]: row for row in rows if row["rule"] == "all rules"}
    lines = []
    for row in rows:
        whole = wholes[row["network"]]
        if "kernels_saved" not in row and "kernels" not in row:
            lines.append((row["network"], row["rule"], row.get("fired"), *[""] * (len(levels) + 2), row["note"][:60]))
            continue
        if row["rule"] == "all rules":
            copies = f"{row['copies']} copies inserted, VCOPY {row['copy_cycles']:,} cycles"
            cycles = [row[f"cycles_{level}"] for level in levels]
            lines.append((row["network"], "all rules", None, row["kernels"], row["ddr_bytes"], *cycles, copies))
            continue
        shares = [f"{row[f'cycles_{level}'] / whole[f'cycles_{level}']:+.1%}" for level in levels]
        lines.append((row["network"], row["rule"], row["fired"], row["kernels_saved"], row["ddr_bytes_saved"], *shares, row.get("note")))
    print_table(("<network", "<rule", "fired", "operators", "DDR bytes", *levels, "<note"), lines)


def main(
    out: Annotated[Path, typer.Option(help="CSV to write.")],
    networks: Annotated[str, typer.Option(help="Comma-separated light: and made: names, or files.")] = ",".join(
        (*shipped(), *CONVOLUTIONAL)
    ),
    machine: Annotated[str, typer.Option(help="A preset or a YAML file.")] = "edge",
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    rules: Annotated[str, typer.Option(help="Comma-separated names of rules.")] = ",".join(rule.name for rule in LAST_RULES),
    seconds: Annotated[float, typer.Option(min=1, help="Per network; what is left then is marked.")] = 300.0,
) -> None:
    """Switch every rewrite off in turn."""
    known = {rule.name for rule in LAST_RULES}
    if unknown := [name for name in rules.split(",") if name not in known]:
        raise typer.BadParameter(f"{unknown[0]!r}; expected some of {', '.join(sorted(known))}", param_hint="--rules")
    target = load_machine(machine)
    rows: list[dict[str, Any]] = []
    for network in networks.split(","):
        found = study(network, target, DataType[dtype], tuple(rules.split(",")), time.perf_counter() + seconds)
        show(found, list(target.contention))
        rows += found
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    typer.run(main)
