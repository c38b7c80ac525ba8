"""Whether bytes that come back from files would run code."""

from __future__ import annotations

import pickletools


def is_pickle(data: bytes) -> bool:
    """Whether `pickle.loads` would take it."""
    try:
        return [op.name for op, _, _ in pickletools.genops(data)][-1:] == ["STOP"]
    except ValueError:
        return False
