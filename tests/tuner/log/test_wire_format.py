"""Columns travel side by side and come back as they were, nulls among them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tuner.log.record import ORIGIN, RESULTS, Column
from tuner.log.wire_format import LOG_ROWS, TASK_ROWS, WireRows, split_columns

COLUMNS = (
    Column("row_id", pa.string(), ""),
    Column("name", pa.dictionary(pa.int32(), pa.string()), "", source="level"),
    Column("text", pa.string(), "", nullable=True, source="task"),
    *(Column(name, pa.int64(), "", nullable=True, source="values") for name in RESULTS[:2]),
    Column("seen", pa.int64(), "", source="reading.count"),
    Column("kind", pa.int8(), "", source="job"),
)
SCHEMA = pa.schema([column.field() for column in COLUMNS])
WIRE = WireRows(COLUMNS)


class Place(NamedTuple):
    """Objects of all sources."""

    name: str = ""
    text: str | None = None
    count: int = 0
    kind: int = 0


def test_what_travels() -> None:
    assert WIRE.schema == pa.schema([("name", pa.string()), ("text", pa.string()), ("seen", pa.int64()), ("kind", pa.int8())])
    assert not {"row_id", "seq", *ORIGIN, *RESULTS} & {*LOG_ROWS.schema.names}
    assert not [name for name in TASK_ROWS.schema.names if name.startswith("f_")]


@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_a_row_for_each_task_and_level(tasks: int) -> None:
    levels, texts = [Place("a"), Place("b")], [None, "t", "u"][:tasks]
    readings = [Place(count=count) for count in range(2 * tasks)]
    rows = WIRE.to_batch(Place(kind=3), [Place(text=text) for text in texts], levels, readings)
    assert WIRE.from_bytes(WIRE.pack(rows)).to_pylist() == [
        {"name": level.name, "text": text, "seen": 2 * task + index, "kind": 3}
        for task, text in enumerate(texts)
        for index, level in enumerate(levels)
    ]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_columns_come_back_as_they_were(share: float) -> None:
    rng = np.random.default_rng(3)
    data, flat, expected = list[bytes](), list[pa.Array](), list[dict[str, object]]()
    kept, missing = list[bool](), list[bool]()
    for count in (1, 5, 0, 3):
        numbers = rng.integers(-(2**62), 2**62, (count, 2))
        names, texts = [f"n{i % 2}" for i in range(count)], [None if i % 3 == 1 else f"t{i}" for i in range(count)]
        data.append(WIRE.pack({"name": names, "text": texts, "seen": range(count), "kind": [3] * count}))
        flat.append(pa.array(numbers.ravel()))
        for i in range(count):
            kept.append(bool(rng.random() < 0.7))
            missing.append(bool(rng.random() < share))
            results = [None, None] if missing[-1] else numbers[i].tolist()
            if kept[-1]:
                expected.append(dict(zip(SCHEMA.names[1:], (names[i], texts[i], *results, i, 3), strict=True)))
    mask = np.array(kept)
    found = WIRE.gather(data, mask) | split_columns(flat, RESULTS[:2], mask, np.array(missing)[mask])
    table = pa.table(found | {"row_id": pa.repeat("x", sum(kept))}, schema=SCHEMA)
    table.validate(full=True)
    assert table.drop_columns("row_id").to_pylist() == expected


def test_nulls_among_what_lies_side_by_side_stay() -> None:
    flat = [pa.array([1.0, None, 3.0, 4.0], pa.float32()), pa.array([None, 6.0], pa.float32())]
    found = split_columns(flat, ("a", "b"), np.array([True, False, True]))
    assert {name: column.to_pylist() for name, column in found.items()} == {"a": [1.0, None], "b": [None, 6.0]}
