"""Write docs/log-columns.md from the columns that the farm writes.

    python scripts/log_columns.py

The test beside it (tests/docs/test_columns.py) fails while the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from compiler.cost.features import FEATURE_SET, FEATURES  # noqa: E402
from tuner.log.record import FEATURE_PREFIX, LOG_COLUMNS, SCHEMA_VERSION, STATUSES, TASK_COLUMNS, Column  # noqa: E402

PAGE = ROOT / "docs/log-columns.md"


def table(columns: Sequence[Column]) -> list[str]:
    """A row per column."""
    rows = ["| column | type | unit | null | meaning |", "|---|---|---|---|---|"]
    return rows + [f"| `{c.name}` | {type_name(c)} | {c.unit} | {'yes' if c.nullable else ''} | {c.meaning} |" for c in columns]


def type_name(column: Column) -> str:
    """Name of a type for users of pandas."""
    name = str(column.type)
    if name.startswith("dictionary"):
        return "name (dictionary)"
    return {"double": "float64", "timestamp[us, tz=UTC]": "timestamp (us, UTC)"}.get(name, name)


def page() -> str:
    """The whole page."""
    statuses = ", ".join(f"`{status}`" for status in STATUSES)
    lines = [
        "# Columns of the log",
        "",
        "<!-- written by scripts/log_columns.py; do not edit -->",
        "",
        f"Both schemas have version {SCHEMA_VERSION}.",
        "All parts of a dataset have one schema, with unit and meaning as metadata:",
        '`pyarrow.parquet.read_schema("RUN/log/00000000.parquet").field("cycles").metadata`.',
        "[Reading the log](reading-the-log.md) says how to use the columns.",
        "",
        "## `RUN/log/`: a row per measured task, contention level and attempt",
        "",
        f"`status` is one of {statuses}.",
        "Results (`cycles` to `peak_shared_bytes`) are null exactly where it is not `ok`.",
        "",
        *table(LOG_COLUMNS),
        "",
        "## `RUN/tasks/`: a row per distinct task",
        "",
        *table(TASK_COLUMNS),
        "",
        f"Then the features of set `{FEATURE_SET}`, float32, null where a task has none:",
        "",
        *[f"* `{FEATURE_PREFIX}{name}`" for name in FEATURES],
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write docs/log-columns.md from the columns of the log and of the tasks that the farm writes."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
