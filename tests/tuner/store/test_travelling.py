"""Columns travel side by side and come back as they were, nulls among them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tuner.store.schema import ORIGIN, RESULTS, FeatureSet, log_schema, task_schema
from tuner.store.travelling import blocks, gathered, packed, side_by_side, travelling

SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.string(), False),
        pa.field("name", pa.dictionary(pa.int32(), pa.string()), False),
        pa.field("text", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("a", "b", "c")),
        pa.field("d", pa.float32()),
        pa.field("e", pa.float32()),
        pa.field("seen", pa.int64(), False),
    ]
)


def test_what_lies_side_by_side() -> None:
    assert blocks(SCHEMA) == {"name": ["name"], "text": ["text"], "a": ["a", "b", "c"], "d": ["d", "e"], "seen": ["seen"]}
    assert travelling(SCHEMA).types == [pa.string(), pa.string(), pa.list_(pa.int64(), 3), pa.list_(pa.float32(), 2), pa.int64()]
    assert blocks(log_schema())[RESULTS[0]] == list(RESULTS)
    assert not {"row_id", "seq", *ORIGIN} & {name for names in blocks(log_schema()).values() for name in names}
    assert blocks(task_schema([FeatureSet("s", ("m", "k"))]))["f_m"] == ["f_m", "f_k"]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_columns_come_back_as_they_were(share: float) -> None:
    rng = np.random.default_rng(3)
    data, expected, kept = list[bytes](), list[dict[str, object]](), list[bool]()
    for count in (1, 5, 0, 3):
        numbers, missing = rng.integers(-(2**62), 2**62, (count, 3)), rng.random((count, 3)) < share
        shares = rng.random((count, 2)).astype(np.float32)
        names, texts = [f"n{i % 2}" for i in range(count)], [None if i % 3 == 1 else f"t{i}" for i in range(count)]
        columns = {"name": names, "text": texts, "a": side_by_side(numbers, missing), "d": side_by_side(shares), "seen": range(count)}
        data.append(packed(columns, SCHEMA))
        for i in range(count):
            results = [None if gone else int(number) for number, gone in zip(numbers[i], missing[i], strict=True)]
            values = [names[i], texts[i], *results, *shares[i].tolist(), i]
            kept.append(bool(rng.random() < 0.7))
            if kept[-1]:
                expected.append(dict(zip(SCHEMA.names[1:], values, strict=True)))
    found = gathered(data, np.array(kept), SCHEMA)
    table = pa.table(found | {"row_id": pa.repeat("x", sum(kept))}, schema=SCHEMA)
    table.validate(full=True)
    assert table.drop_columns("row_id").to_pylist() == expected
