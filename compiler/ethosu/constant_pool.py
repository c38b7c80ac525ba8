"""Constants of a stream, each content once; streams of several levels may have one pool."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.buffer_addresses import ALIGN


class ConstantPool:
    """Bytes that grow; an address once given stays."""

    def __init__(self) -> None:
        self._parts, self._known, self.size = list[bytes](), dict[bytes, int](), 0

    def add(self, data: bytes) -> int:
        """The address of some bytes."""
        if data not in self._known:
            self._known[data] = self.size
            self._parts.append(data + bytes(-len(data) % ALIGN))
            self.size += len(self._parts[-1])
        return self._known[data]

    def copy(self) -> ConstantPool:
        """Another pool with the same constants."""
        twin = ConstantPool()
        twin._parts, twin._known, twin.size = list(self._parts), dict(self._known), self.size
        return twin

    def data(self) -> NDArray[np.uint8]:
        """All of them."""
        return np.frombuffer(b"".join(self._parts) or bytes(ALIGN), np.uint8)
