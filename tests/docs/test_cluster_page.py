"""Tables of docs/cluster.md are those of the code: rules on what limits a run, and metrics."""

from __future__ import annotations

import re

import pytest

from tests.docs.fences import ROOT
from tuner.runs.farm_limits import BUSY, DISK, DRIVER, JOINING, LIMITS
from tuner.runs.farm_metrics import METRICS

PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")


def table(name: str) -> list[tuple[str, str]]:
    """First two cells of the rows between the marks."""
    text = PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    return re.findall(r"^\| `([^`]+)` \| (.+?) \|$", text, re.MULTILINE)


def test_metrics_are_listed() -> None:
    assert table("metrics") == [(metric.name, metric.meaning) for metric in METRICS]


def test_rules_are_listed_in_order() -> None:
    rows = dict(table("limits"))
    assert list(rows) == [limit.name for limit in LIMITS]
    assert re.findall(r"\d+%", rows["disk"]) == [f"{DISK:.0%}"]
    assert re.findall(r"\d+%", rows["driver"]) == [f"{DRIVER:.0%}", f"{BUSY:.0%}"]
    assert re.findall(r"\d+%", rows["workers"]) == [f"{BUSY:.0%}"]
    assert "a quarter" in rows["joining"]
    assert pytest.approx(0.25) == JOINING
