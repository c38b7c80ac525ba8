"""Command `tilefarm simulate`: time of a compiled file, in total or by segment, alone or under a changing load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.options import Compiled as CompiledFile
from tuner.cli.options import Json, LoadOptions
from tuner.cli.text import ddr_text, finite_or_none, print_json, print_pace, print_pieces, print_table

if TYPE_CHECKING:
    from simulator.compiled import Compiled

app = new_app()


@app.command()
def simulate(
    compiled: CompiledFile,
    level: Annotated[
        str | None, typer.Option(metavar="L", help="Contention level; all unless given. With --controller static: the variant that runs.")
    ] = None,
    by_segment: Annotated[
        bool,
        typer.Option(
            "--segments", help="Segment by segment instead: cycles, limits, bytes, work; and the longest chain of work and waits."
        ),
    ] = False,
    *,
    load: LoadOptions,
    as_json: Json = False,
) -> None:
    if load.given():
        if by_segment:
            raise BadInputError("--segments does not go with --trace")
        from tuner.cli.contention import simulate_contended

        simulate_contended(compiled, load, level, as_json)
    elif by_segment:
        from tuner.cli.segments import show_segments

        show_segments(compiled, level, as_json)
    else:
        _levels(compiled, level, as_json)


def _levels(path: Path, level: str | None, as_json: bool) -> None:
    from simulator.bundle.read import read_model

    compiled = read_model(path)
    levels = compiled.levels if level is None else (compiled.variants(level)[0].level,)
    rows = {name: _figures(compiled, name) for name in levels}
    machine, pieces = compiled.machine, compiled.piece_rows(levels)
    if as_json:
        head = {
            "file": str(path),
            "machine": machine.name,
            "dtype": compiled.dtype.name,
            "types": compiled.types,
            "clock_hz": machine.clock_hz,
            "frames": compiled.frames,
        }
        print_json({**head, "pieces": pieces, "levels": rows})
        return
    print_line(f"{path}: {machine.name}, {compiled.types}, {machine.clock_hz / 1e6:,.0f} MHz, cores: {machine.cores}")
    # columns only of memories that the machine has
    extra = {"shared_read_bytes": "shared read B", "shared_write_bytes": "shared write B"} if machine.shared is not None else {}
    extra |= {"l2_read_bytes": "L2 read B", "l2_write_bytes": "L2 wrote B"} if machine.l2 is not None else {}
    print_table((*_COLUMNS, *extra.values()), [(name, *_cells(row), *(row[key] for key in extra)) for name, row in rows.items()])
    print_pace(compiled.frames, rows)
    if len(pieces) > 1:
        print_line()
        print_line("pieces: they run one after the other; the host's time between them is not included")
        print_pieces(pieces)
    print_line()
    print_line("utilisation: share of the cycles in which the engine works, mean over cores")
    used = {name: row["engine_utilisation"] for name, row in rows.items()}
    engines = [engine.upper() for engine in next(iter(used.values()))]
    print_table(("<level", *engines), [(name, *(f"{share:.1%}" for share in row.values())) for name, row in used.items()])


_COLUMNS = (
    "<level", "DDR share", "<variant", "cycles", "latency us", "bound cycles", "of bound", "DDR read B", "DDR write B", "balance",
)  # fmt: skip


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        ddr_text(row),
        f"as {row['same_as']}" if row["same_as"] else (row["plan"][:12] or "no plan"),
        row["cycles"],
        f"{row['latency_us']:,.1f}",
        row["program_bound_cycles"],
        f"{row['cycles'] / row['program_bound_cycles']:.2f}" if row["program_bound_cycles"] else "",
        row["ddr_read_bytes"],
        row["ddr_write_bytes"],
        "inf" if row["balance"] is None else f"{row['balance']:.3f}",
    )


def _figures(compiled: Compiled, level: str) -> dict[str, Any]:
    """Figures of a level: its variants one after the other, at the level's share of the bandwidth."""
    from simulator.npu.parts import Engine
    from simulator.npu.shared_traffic import shared_traffic
    from simulator.subgraph_sequence import bound_of_all, simulate_all

    machine, condition = compiled.machine, compiled.level(level)
    prepared = [program.behind(condition.l2_bytes) for program in compiled.prepared(level)]
    shared_bytes = shared_traffic(stream for program in compiled.programs(level) for stream in program.streams)
    timing = simulate_all(prepared, machine, condition)
    compiled.check_cycles(level, timing.cycles)  # stale cycles in the file are an error
    busy_cycles = timing.busy_cycles.sum(axis=0)
    traffic = [program.l2 for program in prepared if program.l2 is not None]
    l2 = {"l2_read_bytes": sum(t.read_bytes for t in traffic), "l2_write_bytes": sum(t.written_bytes for t in traffic)} if traffic else {}
    return {
        "ddr": condition.model_dump(),
        "plan": compiled.plan(level),
        "same_as": compiled.same_as(level),
        "cycles": timing.cycles,
        **compiled.pace(timing.cycles)._asdict(),
        "program_bound_cycles": bound_of_all(prepared, machine, condition),
        "instructions": timing.instructions,
        "ddr_read_bytes": timing.ddr_read_bytes,
        "ddr_write_bytes": timing.ddr_write_bytes,
        "shared_read_bytes": shared_bytes.read_bytes,
        "shared_write_bytes": shared_bytes.write_bytes,
        **l2,
        "load_store_cycles": timing.load_store_cycles,
        "compute_cycles": timing.compute_cycles,
        "balance": finite_or_none(timing.balance),
        "engine_utilisation": {
            engine.name.lower(): float(busy_cycles[engine]) / max(1, timing.cycles * machine.cores) for engine in Engine
        },
        "variant_cycles": compiled.cycles(level),
    }
