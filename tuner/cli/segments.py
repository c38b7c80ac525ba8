"""Option `simulate --segments`: the time of a compiled file by segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.breakdown import ProgramReuse, SegmentTime, breakdown, program_reuse
from simulator.bundle.read import read_model
from simulator.critical_path import WAITS, WORK, ChainCycles, chain_cycles, critical_chain
from simulator.npu.container import OperatorEntry
from simulator.terminal import print_line
from simulator.timeline import Cause
from tuner.cli.text import print_json, print_table, ratio


def show_segments(path: Path, level: str | None, as_json: bool) -> None:
    """Print segments and the critical chain of every level, or of one."""
    compiled = read_model(path)
    levels = compiled.levels if level is None else (compiled.variants(level)[0].level,)
    runs = {name: compiled.timeline(name) for name in levels}
    for name, timeline in runs.items():
        compiled.check_cycles(name, timeline.cycles)  # stale cycles in the file are an error
    operators = compiled.operators
    rows = {name: breakdown(timeline, compiled.segments(name), operators) for name, timeline in runs.items()}
    chains = {name: chain_cycles(timeline, critical_chain(timeline)) for name, timeline in runs.items()}
    machine = compiled.machine
    if as_json:
        print_json(
            {
                "file": str(path),
                "machine": machine.name,
                "dtype": compiled.dtype.name,
                "types": compiled.types,
                "clock_hz": machine.clock_hz,
                "levels": {
                    name: {
                        "cycles": runs[name].cycles,
                        "reuse": asdict(program_reuse(segment_rows)),
                        "segments": [_json(operators, row) for row in segment_rows],
                        "longest_chain": [_link(operators, link) for link in chains[name]],
                    }
                    for name, segment_rows in rows.items()
                },
            }
        )
        return
    for index, (name, segment_rows) in enumerate(rows.items()):
        cycles = runs[name].cycles
        if index:
            print_line()
        print_line(f"{path}: {machine.name}, {compiled.types}, level {name}, {cycles:,} cycles")
        has_shared = machine.shared is not None
        print_table(_columns(has_shared), [_cells(operators, row, cycles, has_shared) for row in segment_rows])
        print_line(_reuse_line(program_reuse(segment_rows)))
        _print_chain(operators, chains[name], cycles)


_SHOWN_LINKS = 10


def _print_chain(operators: Sequence[OperatorEntry], chain: Sequence[ChainCycles], cycles: int) -> None:
    """Links of the critical chain, the longest first, and sums by engine."""
    print_line()
    print_line("critical path: the longest chain of work and waits, in which each link delays the next one")
    rows = [
        (_chain_text(operators, link) or "", _chain_reason(link), link.cycles, f"{link.cycles / cycles:.1%}")
        for link in chain[:_SHOWN_LINKS]
    ]
    print_table(("<operator", "<on", "cycles", "of run"), rows)
    totals: dict[str, int] = {}
    for link in chain:
        resource = link.engine.name if link.cause == WORK else "waits"
        totals[resource] = totals.get(resource, 0) + link.cycles
    print_line(
        "total: " + ", ".join(f"{resource} {count / cycles:.1%}" for resource, count in sorted(totals.items(), key=lambda item: -item[1]))
    )


def _chain_text(operators: Sequence[OperatorEntry], link: ChainCycles) -> str | None:
    return _name(operators, link.operator) if link.operator >= 0 else None


def _chain_reason(link: ChainCycles) -> str:
    return link.engine.name if link.cause == WORK else f"{link.engine.name} {WAITS[Cause(link.cause)]}"


def _link(operators: Sequence[OperatorEntry], link: ChainCycles) -> dict[str, Any]:
    cause = "work" if link.cause == WORK else Cause(link.cause).name.lower()
    return {"operator": _chain_text(operators, link), "engine": link.engine.name, "cause": cause, "cycles": link.cycles}


def _columns(has_shared: bool) -> tuple[str, ...]:
    """Column names.  has_shared: the machine has memory shared by its cores."""
    return (
        "seg", "<operators", "ops", "blocks", "blocks/load", "ops/load", "cycles", "own", "of run", "alone", "<bound by", "busy", "CUBE",
        "DDR read B", "DDR write B", *(("shared read B", "shared write B") if has_shared else ()), "MACs", "MACs/B", "halo", "padding",
    )  # fmt: skip


def _cells(operators: Sequence[OperatorEntry], row: SegmentTime, cycles: int, has_shared: bool) -> tuple[object, ...]:
    traffic = row.ddr_read_bytes + row.ddr_write_bytes
    first, last = (_name(operators, number) for number in (row.first, row.last))
    return (
        row.segment,
        first if first == last else f"{first} .. {last}",
        row.operators,
        row.blocks,
        ratio(row.blocks_per_load, 1),
        ratio(row.operators_per_load, 1),
        row.cycles,
        row.own_cycles,
        f"{row.own_cycles / cycles:.1%}",
        row.alone_cycles,
        row.bound,
        f"{row.utilisation[row.bound]:.0%}" if row.bound else "",
        f"{row.utilisation['CUBE']:.0%}" if row.bound else "",
        row.ddr_read_bytes,
        row.ddr_write_bytes,
        *((row.shared_read_bytes, row.shared_write_bytes) if has_shared else ()),
        row.macs,
        f"{row.macs / traffic:.1f}" if traffic and row.macs else "",
        ratio(row.halo, 2),
        ratio(row.padding, 2),
    )


def _reuse_line(reuse: ProgramReuse) -> str:
    """Line about the entire program, printed below its segments."""
    parts = [f"{reuse.segments} segments"]
    parts += [f"{reuse.blocks} blocks"] if reuse.blocks is not None else []
    parts += [f"{reuse.loads:,} loads"]
    for value, label in ((reuse.blocks_per_load, "blocks/load"), (reuse.operators_per_load, "ops/load"), (reuse.halo, "halo")):
        parts += [f"{label} {value:.2f}"] if value is not None else []
    return "total: " + ", ".join(parts)


def _name(operators: Sequence[OperatorEntry], number: int) -> str:
    return operators[number].name if number < len(operators) else f"operator {number}"


_SAME = (
    "cycles", "own_cycles", "alone_cycles", "bound", "utilisation", "steps", "loading_steps", "operators_per_load", "blocks_per_load",
    "loads", "ddr_read_bytes", "ddr_write_bytes", "shared_read_bytes", "shared_write_bytes", "macs", "needed_macs", "halo",
    "padding",
)  # fmt: skip


def _json(operators: Sequence[OperatorEntry], row: SegmentTime) -> dict[str, Any]:
    return {
        "segment": row.segment,
        "first_operator": _name(operators, row.first),
        "last_operator": _name(operators, row.last),
        "operators": row.operators,
        "blocks": row.blocks,
        "start_cycle": row.start,
        "end_cycle": row.end,
        **{key: getattr(row, key) for key in _SAME},
    }
