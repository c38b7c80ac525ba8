"""Transfers from and to DDR among records: what a hardware L2 sees of them (`simulator.l2_traffic`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.parts import Memory
from simulator.npu.program import Code

Ints = NDArray[np.int64]


class Transfers(NamedTuple):
    """Transfers from and to DDR among records.

    access: int64 [n, 8], see the table at the top, rounds left out.  row: int64 [n], ascending, the record.  path: int64 [n, 2], memories
    from and to which data move.
    """

    access: Ints
    row: Ints
    path: Ints

    def moved_to(self, code: Code, order: Ints) -> Transfers:
        """The same transfers of records that differ in addresses of DDR only.  order: int64 [records], as for `row`."""
        rows, access = order[self.row], self.access.copy()
        access[:, 2] = np.where(access[:, 1] > 0, code[rows, isa.D], code[rows, isa.S0])
        return Transfers(access, self.row, self.path)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self)


NO_TRANSFERS = Transfers(np.zeros((0, 8), np.int64), np.zeros(0, np.int64), np.zeros((0, 2), np.int64))


def find_transfers(code: Code) -> Transfers:
    """Transfers of records in their order."""
    reads = (code[:, isa.OP] == Op.COPY) & (code[:, isa.SRC] == Memory.DDR)
    copies = (code[:, isa.OP] == Op.COPY) & (code[:, isa.DST] == Memory.DDR)
    results = (code[:, isa.OP] == Op.FIXPIPE) & (code[:, isa.DST] == Memory.DDR)
    rows = np.flatnonzero(reads | copies | results)
    records = code[rows].astype(np.int64)
    loads, stores, sums = reads[rows], copies[rows], results[rows]
    access = np.zeros((len(rows), 8), np.int64)
    access[:, 1] = ~loads
    access[:, 2] = np.where(loads, records[:, isa.S0], records[:, isa.D])
    access[:, 3], access[:, 4], access[:, 6] = records[:, isa.C_LENGTH], records[:, isa.C_COUNT], records[:, isa.C_COUNT2]
    for column, source, target in ((5, isa.C_SSTRIDE, isa.C_DSTRIDE), (7, isa.C_SSTRIDE2, isa.C_DSTRIDE2)):
        access[:, column] = np.where(stores, records[:, target], records[:, source])
    planes = -(-records[sums, isa.F_N1] * isa.COLUMNS[records[sums, isa.DTYPE]] // isa.TYPE_LANES[records[sums, isa.DTYPE]])
    ones = np.ones_like(planes)
    access[sums, 3:] = np.column_stack((records[sums, isa.F_M], planes, records[sums, isa.F_DPLANE], ones, 0 * ones))
    return Transfers(access, rows, records[:, [isa.SRC, isa.DST]])
