"""What a job measured on its way from the worker: columns that log and search both read, and beside them those of the log alone.

| in the dataset                                     | on its way                                                                |
|----------------------------------------------------|---------------------------------------------------------------------------|
| what only the driver knows, or knows as well       | nothing: `row_id`, `seq` and what is the same in all rows of a run         |
| results and features                               | in `EPOCH`, flat, which everybody reads                                    |
| names, coded                                       | texts: their dictionaries are made for a whole part                       |
| anything else                                      | the same                                                                  |

To open a column takes as long as to copy a hundred numbers; a job has few rows, and most of a row is results and features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.log.columns import INTS, schema_of
from tuner.log.compress import compressed, decompressed
from tuner.log.schema import FEATURE_PREFIX, ORIGIN, RESULTS

EPOCH = schema_of(
    task=pa.string(), kind=pa.int8(), status=pa.int8(), asked=pa.bool_(), genome=INTS, values=pa.int64(), features=pa.float32(),
    programs=pa.int64(), singles=pa.bool_(), island=pa.int64(), border=pa.float64(),
    elite_genome=INTS, elite_cycles=pa.int64(), elite_task=pa.string(), proposed=INTS, proposed_by=pa.string(),
)  # fmt: skip
"""What an island measured in an epoch, and what others may want to know of it besides.

| columns                 | for each of                         | meaning                                                           |
|-------------------------|-------------------------------------|-------------------------------------------------------------------|
| `task`                  | the measurements, in their order    | digest; nothing where one before is the same plan of other genes   |
| `kind`, `status`        |                                     | places in `KINDS` and `STATUSES`; status 0 is ok                   |
| `asked`                 |                                     | whether cycles were asked for, not features alone                 |
| `genome`                |                                     | of a segment (`tuner.search.packing`), else nothing               |
| `values`, `features`    |                                     | levels x RESULTS of it, 0 where not ok; as models take them       |
| `programs`, `singles`   | the programs among them             | name of the genome; whether of single operators in turn           |
| `island`, `border`      | itself                              | its number; cycles that a border saved at each level, or nothing  |
| `elite_*`, `proposed`   | its best; genomes from elsewhere    | where others ask for them; worth measuring                        |
| `proposed_by`           | those genomes                       | where they are from                                               |
"""

Dataset = dict[str, pa.Array]

_DRIVERS = {"row_id", "seq", "drift", "drifted", *ORIGIN}


@lru_cache(maxsize=4)
def travelling(schema: pa.Schema) -> pa.Schema:
    """Of columns of a dataset that travel beside `EPOCH`, without metadata."""
    fields = [field for field in schema if field.name not in {*_DRIVERS, *RESULTS} and not field.name.startswith(FEATURE_PREFIX)]
    return pa.schema(
        [pa.field(field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type) for field in fields]
    )


def packed(columns: Mapping[str, Any], schema: pa.Schema) -> bytes:
    """Columns that travel, without their schema, which takes longer to read than they do.  schema: of the dataset."""
    return compressed(pa.record_batch(columns, schema=travelling(schema)).serialize())


def unpacked(data: bytes, fields: pa.Schema) -> pa.RecordBatch:
    """Columns that travelled.  fields: `travelling`."""
    return pa.ipc.read_record_batch(decompressed(data), fields)


def gathered(batches: Sequence[bytes], kept: NDArray[np.bool_], schema: pa.Schema) -> Dataset:
    """Those rows of `packed` batches, in columns of the dataset."""
    fields = travelling(schema)
    table = pa.Table.from_batches([unpacked(data, fields) for data in batches]).combine_chunks()
    if not kept.all():
        table = table.filter(pa.array(kept))
    found: Dataset = {}
    for field, chunks in zip(fields, table.columns, strict=True):
        column = chunks.combine_chunks()
        found[field.name] = column.dictionary_encode() if pa.types.is_dictionary(schema.field(field.name).type) else column
    return found


def apart(flat: Sequence[pa.Array], names: Sequence[str], kept: NDArray[np.bool_], missing: NDArray[np.bool_] | None = None) -> Dataset:
    """Columns that lay side by side in every row of flat arrays, of those rows that are kept.  missing: bool [kept rows]: null.

    They lie one behind the other in one array, which costs less than to make an array of each.
    """
    whole, width = pa.concat_arrays(flat), len(names)
    rows = int(kept.sum())
    every = rows == len(kept)

    def turned(values: pa.Array) -> NDArray[Any]:
        square = np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(kept), width)
        return (square if every else square[kept]).T.ravel()

    null = turned(whole.is_null()) if whole.null_count else None if missing is None else np.tile(missing, width)
    column = pa.array(turned(whole.fill_null(0) if whole.null_count else whole), mask=null)
    return {name: column.slice(at * rows, rows) for at, name in enumerate(names)}
