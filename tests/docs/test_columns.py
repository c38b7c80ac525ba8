"""The page of columns is what the farm writes."""

from __future__ import annotations

import runpy

from tests.docs.fences import ROOT


def test_the_page_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts/log_columns.py"))["page"]()
    assert (ROOT / "docs/log-columns.md").read_text(encoding="utf-8") == made, "run: python scripts/log_columns.py"
