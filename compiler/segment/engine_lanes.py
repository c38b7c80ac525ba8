"""Lanes of a core, which work in parallel: the matrix unit with its load and store engines, and the vector unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp

MATRIX, VECTOR = 0, 1


def lane(spec: TargetOp) -> int:
    """Lane of an operator.  Every operator that uses L0 is a product of the matrix unit."""
    return MATRIX if spec.runs_on == "CUBE" else VECTOR


def lanes(target_graph: TargetGraph, start: int, stop: int) -> NDArray[np.int64]:
    """Lanes of operators [start, stop), int64 [operators]."""
    return np.array([lane(spec) for spec in target_graph.operators[start:stop]], np.int64)
