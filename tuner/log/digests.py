"""Digests of values, over one canonical text for each value.  Without Arrow, which readers of a few JSON files do not need."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """One text per value: keys sorted, no spaces, no NaN (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any) -> str:
    """32 hex digits over the canonical JSON of a value."""
    return text_digest(canonical_json(value))


def text_digest(text: str) -> str:
    """32 hex digits over a text that is canonical already."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def task_digest(kind: str, payload: str) -> str:
    """The name of a task, in the log and everywhere.  payload: canonical JSON."""
    return text_digest(f"{kind}:{payload}")
