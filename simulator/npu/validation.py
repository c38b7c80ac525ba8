"""Validation errors of a file against its schema, in one line."""

from __future__ import annotations

import reprlib
from collections.abc import Callable

from pydantic import ValidationError

_LONG = 400  # characters of one complaint
_NAMES = 16  # most names of missing keys in a message
_MOST = 8  # complaints


def validation_line(error: ValidationError, hint: Callable[[str], str] = lambda path: "") -> str:
    """Errors of pydantic in one line, each with its dotted path; the first `_MOST`, then a count of the others.

    Missing keys are one complaint, with all their names.  hint: text to add to the path of an unknown key.
    """
    parts, items = [], error.errors()
    missing = [_where(item["loc"]) for item in items if item["type"] == "missing"]
    if missing:
        unnamed = len(missing) - _NAMES
        parts.append(f"missing: {', '.join(missing[:_NAMES])}" + (f" and {unnamed} more" if unnamed > 0 else ""))
    complaints = [item for item in items if item["type"] != "missing"]
    for item in complaints[:_MOST]:
        where = _where(item["loc"])
        if not where and item["type"] != "value_error":  # checks of a whole file name its keys themselves
            where = "(whole file)"
        value = item.get("input")
        shown = f" (got {reprlib.repr(value)})" if isinstance(value, str | int | float | bool) else ""
        unknown = item["type"] == "extra_forbidden"
        complaint = "no such key" if unknown else item["msg"].removeprefix("Value error, ")
        text = " ".join((f"{where}: {complaint}" if where else complaint).split())
        if len(text) > _LONG:  # keys and values of any length may be in it; the end says what is accepted
            text = f"{text[: _LONG // 2]}...{text[-_LONG // 2 :]}"
        parts.append(text + shown + (hint(where) if unknown else ""))
    surplus = len(complaints) - _MOST
    return "; ".join(parts) + (f"; and {surplus} more" if surplus > 0 else "")


def _where(place: tuple[int | str, ...]) -> str:
    # pydantic puts the kind of a matrix unit into the path; the file has no such key
    return ".".join(str(part) for part in place if part not in ("cube", "systolic"))
