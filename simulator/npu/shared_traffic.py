"""Bytes moved to and from the memory that all cores share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.parts import BLOCK_BYTES, Memory
from simulator.npu.program import Code


class SharedTraffic(NamedTuple):
    """Traffic of the shared memory.  read_bytes: bytes from shared memory to a core or to DDR.  write_bytes: bytes to shared memory."""

    read_bytes: int
    write_bytes: int


NO_TRAFFIC = SharedTraffic(0, 0)


def shared_traffic(streams: Iterable[Code]) -> SharedTraffic:
    """The traffic of all records of some streams."""
    read = written = 0
    for code in streams:
        copies = code[code[:, isa.OP] == Op.COPY]
        blocks = copies[:, [isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2]].astype(np.int64).prod(axis=1)
        read += int(blocks[copies[:, isa.SRC] == Memory.SHARED].sum())
        written += int(blocks[copies[:, isa.DST] == Memory.SHARED].sum())
    return SharedTraffic(read * BLOCK_BYTES, written * BLOCK_BYTES)
