"""Lines as a text."""

from __future__ import annotations

from collections.abc import Iterable


def text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
