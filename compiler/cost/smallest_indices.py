"""Sorting inside kernels: numba's own sorts take longer to compile than the kernels that need one."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def smallest_indices(values: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Indices of the smallest values, in order, the earlier one of equal values."""
    order, used = np.empty(limit, np.int64), 0
    for i in range(values.shape[0]):
        position = used
        while position > 0 and values[i] < values[order[position - 1]]:
            position -= 1
        if position == limit:
            continue
        used = min(used + 1, limit)
        for k in range(used - 1, position, -1):
            order[k] = order[k - 1]
        order[position] = i
    return order[:used]
