"""Pages that scripts write are of the tree as it is."""

from __future__ import annotations

import runpy

import pytest

from tests.docs.fences import ROOT


@pytest.mark.parametrize(("script", "page"), [("log_columns", "log-columns"), ("list_commands", "cli")])
def test_page_is_up_to_date(script: str, page: str) -> None:
    text = runpy.run_path(str(ROOT / f"scripts/{script}.py"))["page"]()
    assert (ROOT / f"docs/{page}.md").read_text(encoding="utf-8") == text, f"run: python scripts/{script}.py"
