"""Columns travel side by side and come back as they were, nulls among them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tuner.log.schema import ORIGIN, RESULTS, FeatureSet, log_schema, task_schema
from tuner.log.wire_format import apart, gathered, packed, travelling

SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.string(), False),
        pa.field("name", pa.dictionary(pa.int32(), pa.string()), False),
        pa.field("text", pa.string()),
        *(pa.field(name, pa.int64()) for name in RESULTS[:2]),
        pa.field("seen", pa.int64(), False),
    ]
)


def test_what_travels() -> None:
    assert travelling(SCHEMA) == pa.schema([("name", pa.string()), ("text", pa.string()), ("seen", pa.int64())])
    assert not {"row_id", "seq", *ORIGIN, *RESULTS} & {*travelling(log_schema()).names}
    assert not [name for name in travelling(task_schema([FeatureSet("s", ("m", "k"))])).names if name.startswith("f_")]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_columns_come_back_as_they_were(share: float) -> None:
    rng = np.random.default_rng(3)
    data, flat, expected = list[bytes](), list[pa.Array](), list[dict[str, object]]()
    kept, missing = list[bool](), list[bool]()
    for count in (1, 5, 0, 3):
        numbers = rng.integers(-(2**62), 2**62, (count, 2))
        names, texts = [f"n{i % 2}" for i in range(count)], [None if i % 3 == 1 else f"t{i}" for i in range(count)]
        data.append(packed({"name": names, "text": texts, "seen": range(count)}, SCHEMA))
        flat.append(pa.array(numbers.ravel()))
        for i in range(count):
            kept.append(bool(rng.random() < 0.7))
            missing.append(bool(rng.random() < share))
            results = [None, None] if missing[-1] else numbers[i].tolist()
            if kept[-1]:
                expected.append(dict(zip(SCHEMA.names[1:], (names[i], texts[i], *results, i), strict=True)))
    mask = np.array(kept)
    found = gathered(data, mask, SCHEMA) | apart(flat, RESULTS[:2], mask, np.array(missing)[mask])
    table = pa.table(found | {"row_id": pa.repeat("x", sum(kept))}, schema=SCHEMA)
    table.validate(full=True)
    assert table.drop_columns("row_id").to_pylist() == expected


def test_nulls_among_what_lies_side_by_side_stay() -> None:
    flat = [pa.array([1.0, None, 3.0, 4.0], pa.float32()), pa.array([None, 6.0], pa.float32())]
    found = apart(flat, ("a", "b"), np.array([True, False, True]))
    assert {name: column.to_pylist() for name, column in found.items()} == {"a": [1.0, None], "b": [None, 6.0]}
