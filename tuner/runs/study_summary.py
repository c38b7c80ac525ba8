"""Summary of a study, read from its folder."""

from __future__ import annotations

from typing import Any

from simulator.npu.errors import BadInputError
from tuner.platform.files import AnyPath
from tuner.runs.folder import read_json
from tuner.runs.list_runs import SUMMARY

VERSION = 3  # version of batches and summary


def study_summary(path: AnyPath) -> dict[str, Any]:
    """Read a study's summary.json.  Raises `BadInputError` if it is missing or of another version."""
    file = path / SUMMARY
    if not file.is_file():
        raise BadInputError(f"{file}: not there; a study writes it when it begins")
    summary = read_json(file)
    if not isinstance(summary, dict) or summary.get("version") != VERSION:
        version = summary.get("version") if isinstance(summary, dict) else None
        raise BadInputError(f"{file}: a study of version {version!r}, expected {VERSION}; run it again in another folder")
    return summary


def setting_text(value: float | str) -> str:
    """Text of a setting's value, for tables."""
    return value if isinstance(value, str) else f"{value:.4g}"
