"""Columns of words, as wide as they need be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest


def aligned(rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """A line per row of texts, left-aligned; the last one of a row is as long as it is."""
    widths = [max(map(len, column)) for column in zip_longest(*(row[:-1] for row in rows), fillvalue="")]
    return [" " * indent + "  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in rows]
