"""Study of the rewrites: how often each one applies, and the loss if it alone is switched off.

For every network and every rewrite that applies to it: the graph lowered without this rewrite, compiled layer by layer and simulated,
against the graph with all rewrites.  A positive figure is a saving of the rewrite.  Rewrites can replace each other, so savings do not add
up.  The last line of a network gives the cost of copies: operators inserted for the layout, and cycles of VCOPY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compiler.build import default_plan
from compiler.frontend.lower import apply_rewrites, translate_model
from compiler.ir.graph import Graph
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.rewrites.rules import LAST_RULES
from scripts.studies import SHIPPED, Pair, Row, Study, Table, groups, model_named
from scripts.traffic import moved_bytes
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.errors import TilefarmError
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from simulator.timing import simulate_levels
from tuner.zoo.builders import NETWORKS
from tuner.zoo.load import load_network
from tuner.zoo.names import MADE

ALL = "all rules"
CONVOLUTIONAL = tuple(MADE + name for name in NETWORKS if not name.startswith(("bert", "vit")))


class Outcome(NamedTuple):
    """A network, layer by layer.  copies: operators that the layout inserted."""

    operators: int
    cycles: dict[str, int]
    ddr_bytes: int
    copies: int
    copy_cycles: int

    def savings_from(self, baseline: Outcome) -> Row:
        """Saving against `baseline`; negative for a loss."""
        row = {"kernels_saved": baseline.operators - self.operators, "ddr_bytes_saved": baseline.ddr_bytes - self.ddr_bytes}
        return row | {f"cycles_{level}": baseline.cycles[level] - value for level, value in self.cycles.items()}


def outcome(graph: Graph, machine: Machine) -> Outcome:
    """Outcome of a rewritten graph.  Raises `TilefarmError` if it does not fit."""
    target_graph = make_unit(graph, machine, DataType.float16)
    program = Compiler(target_graph).compile(default_plan(target_graph))
    assert isinstance(program, Program)
    timings = simulate_levels(program, machine)
    copies = [code[code[:, isa.OP] == int(Op.VCOPY)] for code in program.streams]
    first = next(iter(timings.values()))
    return Outcome(
        len(target_graph.operators), {level: timing.cycles for level, timing in timings.items()},
        moved_bytes(first), len(target_graph.layout.copies), sum(int(price(code, machine).busy.sum()) for code in copies if len(code)),
    )  # fmt: skip


def rows(pair: Pair) -> Iterator[Row]:
    """A row per rule that fired, and of all rules, which they are compared with."""
    graph, machine = translate_model(load_network(model_named(pair.name)), "0" * 32), pair.target_graph.machine
    lowered, report = apply_rewrites(graph)
    base = outcome(lowered, machine)
    for rule in (rule.name for rule in LAST_RULES if report.fired.get(rule.name)):
        row: Row = {"rule": rule, "fired": report.fired[rule]}
        try:
            yield row | base.savings_from(outcome(apply_rewrites(graph, {rule})[0], machine))
        except TilefarmError as error:
            yield row | {"note": f"without it: {error}"}
    note = f"{base.copies} copies inserted, VCOPY {base.copy_cycles:,} cycles"
    baseline_columns = {f"cycles_{level}": value for level, value in base.cycles.items()}
    yield {
        "rule": ALL,
        "kernels": base.operators,
        "ddr_bytes": base.ddr_bytes,
        "copy_cycles": base.copy_cycles,
        **baseline_columns,
        "note": note,
    }


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Savings of each rewrite relative to the whole program, and figures of the whole program."""
    levels, lines = [key for key in rows[0] if key.startswith("cycles_")], []
    for *rules, group in groups(rows, "network", "machine").values():
        lines += [row | {level: f"{row[level] / group[level]:+.1%}" for level in levels if level in row} for row in rules] + [group]
    savings = [
        {"kernels": row.get("kernels_saved"), "ddr_bytes": row.get("ddr_bytes_saved"), **row, "note": row.get("note", "")[:60]}
        for row in lines
    ]
    by_level = (f"{level.removeprefix('cycles_')}={level}" for level in levels)
    yield Table.from_rows(savings, "<network", "<rule", "fired", "operators=kernels", "DDR bytes=ddr_bytes", *by_level, "<note")


STUDY = Study("rewrites", {}, rows, show, ",".join((SHIPPED, *CONVOLUTIONAL)), seeds=1)
