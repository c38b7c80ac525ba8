"""Output of commands: a table on a terminal, aligned plain lines elsewhere, JSON for programs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulator.terminal import escape_json, escape_line, print_line, print_text
from tuner.cost_model.messages import describe_proposers
from tuner.measure.bound_lines import BOUND_COLUMNS, bound_rows
from tuner.measure.gain_line import describe_gain
from tuner.measure.merit import speedup
from tuner.measure.robust_lines import robust_columns, robust_lines, robust_rows


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table.  Columns with names that start with `<` are text (left), others numbers (right)."""
    texts = [[_cell(value) for value in row] for row in rows]
    names = [escape_line(name.removeprefix("<")) for name in columns]
    left_flags = [name.startswith("<") for name in columns]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name, is_left in zip(names, left_flags, strict=True):
            table.add_column(name, justify="left" if is_left else "right", overflow="fold")
        for row in texts:
            table.add_row(*row)
        Console(markup=False, highlight=False).print(table)
        return
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]
    for row in [names, *texts]:
        cells = (cell.ljust(width) if is_left else cell.rjust(width) for cell, width, is_left in zip(row, widths, left_flags, strict=True))
        print_line("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else escape_line(str(value))


def print_pieces(pieces: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the subgraphs; nothing for a single one.  Their cycles add up to the model's, without the host's time."""
    if len(pieces) < 2:
        return
    levels = list(pieces[0]["cycles"])
    rows = [(p["piece"], p["operators"], p["first_operator"], p["last_operator"], *p["cycles"].values()) for p in pieces]
    print_table(("<piece", "operators", "<first", "<last", *(f"cycles {level}" for level in levels)), rows)


def ddr_text(row: Mapping[str, Any]) -> str:
    """DDR share and added latency of a level, from a row of a report."""
    share, latency = row["ddr"]["share"], row["ddr"]["latency_cycles"]
    return f"{share:g}" + (f" +{latency}" if latency else "")


def print_pace(frames: int, levels: Mapping[str, Mapping[str, Any]]) -> None:
    """Print latency beside throughput, if a run takes several frames."""
    if frames > 1:
        columns = ("<level", "frames", "cycles", "latency us", "cycles/frame", "frames/s")
        rows = (
            (r["cycles"], f"{r['latency_us']:,.1f}", f"{r['cycles_per_frame']:,.0f}", f"{r['frames_per_s']:,.1f}") for r in levels.values()
        )
        print_line()
        print_table(columns, [(name, frames, *row) for name, row in zip(levels, rows, strict=True)])


def print_levels(summary: Mapping[str, Any]) -> None:
    """Print a table of a summary's levels, in cycles unless marked; 80 columns hold eight digits of them."""
    levels: Mapping[str, Mapping[str, Any]] = summary["levels"]
    columns = ("<level", "share", "<plan", "cycles", "latency", "baseline", "speed-up", "roofline")
    print_table(columns, [_level(name, row) for name, row in levels.items()])
    granted = [f"{name} {limits}" for name, row in levels.items() if (limits := _granted(row["ddr"]))]
    if granted:
        print_line(f"granted at {'; at '.join(granted)}")
    print_pace(summary.get("frames", 1), levels)
    print_line()
    print_table(BOUND_COLUMNS, bound_rows(levels))


def _granted(ddr: Mapping[str, Any]) -> str:
    """Granted resources of a level of a summary, which lists only those below the machine's."""
    units = (("l1_bytes", "B of L1"), ("shared_bytes", "B of shared memory"), ("cores", "cores"), ("l2_bytes", "B of L2"))
    return ", ".join(f"{ddr[key]:,} {unit}" for key, unit in units if key in ddr)


def _level(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    baseline = row["baseline_layerwise_cycles"]
    plan = f"as {row['same_as']}" if row.get("same_as") else row["plan"][:8]
    latency = f"{latency_us:.1f} us" if (latency_us := row["latency_us"]) < 1000 else f"{latency_us / 1000:,.2f} ms"
    gain = speedup(baseline / row["cycles"] if baseline else None)
    return name, f"{row['ddr']['share']:g}", plan, row["cycles"], latency, baseline, gain, row["roofline_cycles"]


def print_robust(summary: Mapping[str, Any]) -> None:
    """Print cycles of one program for all levels beside each level's own, and whether variants pay."""
    robust = summary["robust"]
    if robust is not None:
        print_line()
        print_table(robust_columns(robust), robust_rows(summary))
    for line in robust_lines(summary):
        print_line(line)


def print_search(summary: Mapping[str, Any]) -> None:
    """Print the gain of the search and the models that proposed candidates, if the summary has them."""
    for sentence in (describe_gain(summary), describe_proposers(summary)):
        if sentence:
            print_line(sentence)


def print_unconfirmed(summary: Mapping[str, Any]) -> None:
    """Print unconfirmed values of a run, with the reasons."""
    for line in summary["unconfirmed"]:
        print_line(f"values not confirmed: {line}")


def print_next(*commands: Sequence[object]) -> None:
    """Print the suggested next commands, quoted for a shell."""
    print_line("next: " + "; ".join(shlex.join(["tilefarm", *map(str, words)]) for words in commands))


def print_json(value: Any) -> None:
    """Print one JSON value; no NaN."""
    print_text(escape_json(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)) + "\n")


def print_pairs(pairs: Mapping[str, object]) -> None:
    """Print `name  value` lines."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        print_line(f"{name.ljust(width)}  {_cell(value)}".rstrip())


def path_below(folder: object, path: object) -> str:
    """Path or URL relative to a folder that contains it."""
    return str(path).removeprefix(str(folder).rstrip("/") + "/")


def finite_or_none(value: float) -> float | None:
    """Value for JSON: None for infinity and NaN, which JSON lacks."""
    return value if abs(value) != float("inf") and value == value else None


def ratio(value: float | None, digits: int) -> str:
    """Cell of a ratio; empty for None."""
    return "" if value is None else f"{value:.{digits}f}"
