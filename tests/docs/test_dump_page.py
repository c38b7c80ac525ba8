"""The page on dumps agrees with the stages and with what is printed."""

from __future__ import annotations

from compiler.compiler_stages import STAGES
from tests.docs.fences import ROOT, blocks


def test_the_example_is_of_the_golden() -> None:
    (shown,) = blocks(ROOT / "docs/dump.md", "text")
    assert shown.text in (ROOT / "tests/golden/dump/segments.txt").read_text()


def test_the_table_is_of_the_stages() -> None:
    rows = [line for line in (ROOT / "docs/dump.md").read_text().splitlines() if line.startswith("| `")]
    assert rows == [f"| `{stage.name}` | {stage.shows} |" for stage in STAGES if stage.dumper]
