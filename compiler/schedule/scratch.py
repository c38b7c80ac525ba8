"""Scratch arrays for reuse: the system clears every page of a large new array, which takes long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """Arrays of int32 by name, as long as the longest request; each is valid until its next request."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.int32]] = {}

    def array(self, name: str, *shape: int) -> NDArray[np.int32]:
        """Array of int32 [shape] with any contents; one name always has the same columns."""
        buffer = self._arrays.get(name)
        if buffer is None or len(buffer) < shape[0]:
            buffer = self._arrays[name] = np.empty((2 * shape[0], *shape[1:]), np.int32)
        return buffer[: shape[0]]
