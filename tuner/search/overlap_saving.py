"""Savings in cycles at a border between two segments, from measured programs with measured segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.measure.grants import NEVER
from tuner.measure.request import Measurement, Request
from tuner.search.placement import runs_in_sequence
from tuner.search.table import SegmentTable


def border_of(table: SegmentTable, requests: Sequence[Request], measurements: Sequence[Measurement]) -> NDArray[np.float64] | None:
    """Savings, float64 [levels]: cycles of separate segments minus the program's, the median over a round; None without such a program.

    Only programs that fit every level, without persistent tensors, count.
    """
    rows = []
    for request, measurement in zip(requests, measurements, strict=True):
        genome, cycles = request.genome, measurement.cycles
        if request.kind != "program" or cycles is None or len(genome) < 2 or not runs_in_sequence(genome):
            continue
        separate = table.sum_cycles(genome)
        if separate is not None and not any(gene.held for gene in genome) and max(separate.max(), cycles.max()) < NEVER:
            rows.append((separate - cycles) / (len(genome) - 1))
    return np.asarray(np.median(rows, axis=0)) if rows else None
