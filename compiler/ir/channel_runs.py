"""Runs of channels: a Shuffle that selects neighbouring channels is a part of its input."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.ir.operators import Shuffle

Run = tuple[int, int]  # first channel, one past the last


def find_runs(shuffles: Iterable[Shuffle], channels: int) -> dict[str, Run]:
    """Output -> run, for the shuffles of one tensor that select neighbouring channels and overlap no earlier run."""
    run_of_output: dict[str, Run] = {}
    for op in shuffles:
        first, stop = op.order[0], op.order[0] + len(op.order)
        side_by_side = op.order == tuple(range(first, stop)) and len(op.order) < channels
        if side_by_side and all(stop <= low or high <= first for low, high in run_of_output.values()):
            run_of_output[op.y] = (first, stop)
    return run_of_output


def split_channels(named_runs: dict[str, Run], channels: int) -> list[tuple[str | None, Run]]:
    """All channels as runs in order: named runs, and gaps between them with the name None."""
    parts: list[tuple[str | None, Run]] = []
    channel = 0
    for name, (first, stop) in sorted(named_runs.items(), key=lambda named_run: named_run[1]):
        parts += [(None, (channel, first))] if channel < first else []
        parts.append((name, (first, stop)))
        channel = stop
    return [*parts, (None, (channel, channels))] if channel < channels else parts
