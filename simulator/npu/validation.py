"""What is wrong with a file that does not fit its schema, in one line."""

from __future__ import annotations

import reprlib
from collections.abc import Callable

from pydantic import ValidationError

_LONG = 400  # characters of one complaint


def validation_line(error: ValidationError, most: int = 8, hint: Callable[[str], str] = lambda path: "") -> str:
    """pydantic's complaints in one line, each with its dotted path; from the `most`-th on only how many there are.

    hint: what to add to the path of a key that does not exist.
    """
    parts = []
    for item in error.errors()[:most]:
        # the kind of a matrix unit is how pydantic found its schema, not a key of the file
        where = ".".join(str(part) for part in item["loc"] if part not in ("cube", "systolic"))
        if not where and item["type"] != "value_error":  # what our own checks of a whole file say names its keys
            where = "(whole file)"
        value = item.get("input")
        shown = f" (got {reprlib.repr(value)})" if isinstance(value, str | int | float | bool) else ""
        unknown = item["type"] == "extra_forbidden"
        said = "no such key" if unknown else item["msg"].removeprefix("Value error, ")
        text = " ".join((f"{where}: {said}" if where else said).split())
        if len(text) > _LONG:  # a key or a value of any length is in it; the end is what would be accepted
            text = f"{text[: _LONG // 2]}...{text[-_LONG // 2 :]}"
        parts.append(text + shown + (hint(where) if unknown else ""))
    rest = error.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {rest} more" if rest else "")
