"""Rows on their way from whoever measured them to a part of a dataset.

| in the dataset                                     | on its way                                                                |
|----------------------------------------------------|---------------------------------------------------------------------------|
| what only the driver knows, or knows as well       | nothing: `row_id`, `seq` and what is the same in all rows of a run         |
| names, coded                                       | texts: their dictionaries are made for a whole part                       |
| numbers of one type that may be null, side by side | one column of lists, as many numbers each, that has the name of the first |
| anything else                                      | the same                                                                  |

To open a column takes as long as to copy a hundred numbers; a job's batch has few rows, and most of its columns are features or results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.store.compressed import compressed, decompressed
from tuner.store.schema import ORIGIN

Columns = dict[str, pa.Array]

_DRIVERS = {"row_id", "seq", *ORIGIN}


@lru_cache(maxsize=4)
def blocks(schema: pa.Schema) -> dict[str, list[str]]:
    """Columns that travel -> columns of the dataset that they hold."""
    fields = [field for field in schema if field.name not in _DRIVERS]
    found: dict[str, list[str]] = {}
    for together, run in groupby(fields, key=lambda field: field.type if field.nullable and pa.types.is_primitive(field.type) else None):
        names = [field.name for field in run]
        found |= {names[0]: names} if together is not None else {name: [name] for name in names}
    return found


@lru_cache(maxsize=4)
def travelling(schema: pa.Schema) -> pa.Schema:
    """Of rows on their way to a dataset, without metadata."""

    def kind(names: Sequence[str]) -> pa.DataType:
        own = schema.field(names[0]).type
        if len(names) > 1:
            return pa.list_(own, len(names))
        return own.value_type if pa.types.is_dictionary(own) else own

    return pa.schema([pa.field(name, kind(names)) for name, names in blocks(schema).items()])


def side_by_side(values: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """A column of a block.  values: [rows, columns]; missing: bool of the same shape, where they are null."""
    flat = pa.array(values.ravel(), mask=None if missing is None else missing.ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def packed(columns: Mapping[str, Any], schema: pa.Schema) -> bytes:
    """Columns that travel, without their schema, which takes longer to read than they do.  schema: of the dataset."""
    return compressed(pa.record_batch(columns, schema=travelling(schema)).serialize())


def unpacked(data: bytes, fields: pa.Schema) -> pa.RecordBatch:
    """Columns that travelled.  fields: `travelling`."""
    return pa.ipc.read_record_batch(decompressed(data), fields)


def gathered(batches: Sequence[bytes], kept: NDArray[np.bool_], schema: pa.Schema) -> Columns:
    """Those rows of `packed` batches, in columns of the dataset, all but the driver's."""
    fields = travelling(schema)
    table = pa.Table.from_batches([unpacked(data, fields) for data in batches]).combine_chunks()
    if not kept.all():
        table = table.filter(pa.array(kept))
    found: Columns = {}
    for (name, names), chunks in zip(blocks(schema).items(), table.columns, strict=True):
        column = chunks.combine_chunks()
        if len(names) > 1:
            found |= zip(names, _apart(column), strict=True)
        else:
            found[name] = column.dictionary_encode() if pa.types.is_dictionary(schema.field(name).type) else column
    return found


def _apart(block: pa.FixedSizeListArray) -> list[pa.Array]:
    """The columns of a block: one behind the other in one array, which costs less than to make an array of each."""
    rows, width, values = len(block), block.type.list_size, block.flatten()

    def turned(flat: pa.Array) -> NDArray[Any]:
        return flat.to_numpy(zero_copy_only=False).reshape(rows, width).T.ravel()

    whole = pa.array(turned(values.fill_null(0)), mask=turned(values.is_null()) if values.null_count else None)
    return [whole.slice(at * rows, rows) for at in range(width)]
