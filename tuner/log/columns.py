"""Columns as bytes, for messages between driver and actors, and for checkpoints.

They are one row of Arrow with a list in each column, so columns of one message may differ in length.  Schemas are not sent: parsing a
schema takes longer than parsing the data.  No pickle: loaded bytes may come from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError

INTS = pa.list_(pa.int32())  # each element of a column is a list
_HEAD = 8  # bytes of the length
_DENSEST = 255  # limit of bytes that one byte of lz4 may expand to


def compressed(data: bytes | pa.Buffer) -> bytes:
    """A quarter to a tenth of columns and genes, in a few microseconds: a job's result fits into a message of Ray's."""
    return len(data).to_bytes(_HEAD, "little") + pa.compress(data, codec="lz4", asbytes=True)


def decompressed(data: bytes) -> pa.Buffer:
    """Raises `ValueError` or `OSError` where `compressed` did not make it."""
    size = int.from_bytes(data[:_HEAD], "little")
    if size > _DENSEST * len(data):
        raise ValueError(f"{len(data):,} bytes for {size:,}")
    return pa.decompress(memoryview(data)[_HEAD:], size, codec="lz4")


def required_schema(**types: pa.DataType) -> pa.Schema:
    """Schema of columns; names -> types of the elements."""
    return pa.schema([pa.field(name, pa.list_(kind), nullable=False) for name, kind in types.items()])


class Columns:
    """Columns of a message of `to_bytes`; each column is opened at its first use."""

    def __init__(self, row: pa.RecordBatch) -> None:
        self._row = row

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Numbers of a column, read-only; they keep the whole message in memory."""
        return np.asarray(self.arrow(name).to_numpy(zero_copy_only=False))

    def arrow(self, name: str) -> Any:
        return self._row.column(name).values

    def texts(self, name: str) -> list[str]:
        texts: list[str] = self.arrow(name).to_pylist()
        return texts


def to_bytes(columns: Mapping[str, Any], schema: pa.Schema) -> bytes:
    """Message of columns; equal columns give equal bytes.  Numbers of any shape are flattened; a missing column is empty."""
    arrays = []
    for field in schema:
        values = columns.get(field.name, ())
        if not isinstance(values, pa.Array):
            values = pa.array(values.ravel() if isinstance(values, np.ndarray) else values, field.type.value_type)
        arrays.append(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values))
    return compressed(pa.record_batch(arrays, schema=schema).serialize())


def from_bytes(data: bytes, schema: pa.Schema) -> Columns:
    """Columns of a message.  Raises `BadInputError` if the bytes were not made by `to_bytes` from columns of this schema."""
    try:
        row = pa.ipc.read_record_batch(decompressed(data), schema)
        row.validate(full=True)
        if row.num_rows != 1:
            raise ValueError(f"{row.num_rows} rows instead of 1")
    except (ValueError, OSError, pa.ArrowException) as error:
        raise BadInputError(f"not columns of a search: {error}") from None
    return Columns(row)
