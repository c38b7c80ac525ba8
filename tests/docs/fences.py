"""Fenced blocks of the documentation: what a reader would paste."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """`line`: of the opening fence, from 1."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str:
        """Its name, where it is a whole file, whose first line is a comment that says it; ''."""
        found = re.match(r"# (\w+\.(?:py|yaml))\b", self.text)
        return found[1] if found else ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """Blocks in order, of one language or all."""
    text = page.read_text(encoding="utf-8")
    found = [Block(page, text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in _FENCE.finditer(text)]
    return [block for block in found if language in (None, block.language)]


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """(place, words) of every `$ ` line in `console` blocks; a line that ends in a backslash goes on."""
    found = []
    for block in blocks(page, "console"):
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            if line.startswith("$ "):
                found.append((f"{block.where}: {line}", shlex.split(line[2:], comments=True)))
    return found


def example_files(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every Python example of a page in the file that its first line names; what is imported from there is forgotten."""
    for block in blocks(page, "python"):
        assert block.file, block.where
        (folder / block.file).write_text(block.text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
