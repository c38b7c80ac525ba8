"""What the page on dumps shows is what is printed."""

from __future__ import annotations

from tests.docs.fences import ROOT, blocks


def test_the_example_is_of_the_golden() -> None:
    (shown,) = blocks(ROOT / "docs/dump.md", "text")
    assert shown.text in (ROOT / "tests/golden/dump/segments.txt").read_text()
