"""The search knows plans and what a target says of them: nothing of what the NPU makes of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SEARCH = Path(__file__).resolve().parents[3] / "tuner" / "search"
BELOW = ("compiler.instructions", "compiler.codegen", "compiler.schedule", "compiler.pipeline", "simulator.timing")


def imported(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    names = {f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return names | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


@pytest.mark.parametrize("path", sorted(SEARCH.glob("*.py")), ids=lambda path: path.name)
def test_the_search_knows_no_records(path: Path) -> None:
    source = path.read_text()
    assert not re.search("records", source, re.IGNORECASE)
    assert not [name for name in imported(source) if f"{name}.".startswith(tuple(f"{below}." for below in BELOW))]


def test_it_sees_imports() -> None:
    assert imported("import compiler.codegen\nfrom compiler.instructions import grid") == {"compiler.codegen", "compiler.instructions.grid"}
