"""Detection of pickles: bytes that could run code when loaded."""

from __future__ import annotations

import pickletools


def is_pickle(data: bytes) -> bool:
    """Whether `pickle.loads` would load the bytes."""
    try:
        return [op.name for op, _, _ in pickletools.genops(data)][-1:] == ["STOP"]
    except ValueError:
        return False
