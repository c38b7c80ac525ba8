"""`RUN/parts.json`: the number of published parts and rows of each dataset of a run.

Parts are numbered, so a missing part between two others is visible.  A missing last part is not, and neither is the number of rows in a
lost part; this file shows both.  It is written after parts were published, so it never counts too many; after a kill it may count too few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from simulator.npu.errors import BadInputError
from simulator.npu.files import write_atomically
from tuner.log.digests import canonical_json, text_digest
from tuner.platform.files import AnyPath

FILE = "parts.json"
VERSION = 1


class Count(NamedTuple):
    """Counts of a dataset.  parts: published parts.  rows: published rows, also those lost since."""

    parts: int = 0
    rows: int = 0


def read_counts(run: AnyPath) -> dict[str, Count] | None:
    """Counts by dataset; None without the file, as beside a dataset that was copied alone.  Raises `BadInputError`."""
    path = run / FILE
    if not path.is_file():
        return None
    try:
        raw: Any = json.loads(path.read_bytes().decode())
        datasets, version, digest = raw["datasets"], raw["version"], raw["digest"]
        if version == VERSION and digest == text_digest(canonical_json(datasets)):
            return {str(name): Count(int(parts), int(rows)) for name, (parts, rows) in datasets.items()}
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        version = VERSION
    problem = "damaged; `tilefarm log repair RUN` writes it anew" if version == VERSION else f"version {version!r}, expected {VERSION}"
    raise BadInputError(f"{path}: {problem}")


def write_counts(run: AnyPath, counts: Mapping[str, Count]) -> None:
    """Raises `BadInputError` where it cannot be written."""
    datasets = {name: list(count) for name, count in counts.items()}
    text = canonical_json({"version": VERSION, "datasets": datasets, "digest": text_digest(canonical_json(datasets))})
    write_atomically(run / FILE, [text.encode(), b"\n"])
