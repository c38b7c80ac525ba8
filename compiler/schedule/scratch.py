"""Arrays that are written again and again: whoever asks for large ones anew gets pages of the system, which it clears one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """int32 arrays by name, as long as the longest that was asked for; each is valid until it is asked for again."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.int32]] = {}

    def array(self, name: str, *shape: int) -> NDArray[np.int32]:
        """int32 [shape], of any contents; one name always has the same columns."""
        found = self._arrays.get(name)
        if found is None or len(found) < shape[0]:
            found = self._arrays[name] = np.empty((2 * shape[0], *shape[1:]), np.int32)
        return found[: shape[0]]
