"""How many cycles a border between two segments saves, as programs say that were measured beside all of their segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.measure.grants import NEVER
from tuner.measure.request import Measurement, Request
from tuner.search.placement import one_after_another
from tuner.search.table import SegmentTable


def border_of(table: SegmentTable, requests: Sequence[Request], measurements: Sequence[Measurement]) -> NDArray[np.float64] | None:
    """float64 [levels]: segments measured alone against the program, the median over a round; None where no program of it says.

    Only programs that fit every level, and hold no tensor over a border, say anything.
    """
    rows = []
    for request, measurement in zip(requests, measurements, strict=True):
        genome, cycles = request.genome, measurement.cycles
        if request.kind != "program" or cycles is None or len(genome) < 2 or not one_after_another(genome):
            continue
        alone = table.alone(genome)
        if alone is not None and not any(gene.held for gene in genome) and max(alone.max(), cycles.max()) < NEVER:
            rows.append((alone - cycles) / (len(genome) - 1))
    return np.asarray(np.median(rows, axis=0)) if rows else None
