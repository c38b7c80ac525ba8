"""One word, one thing: no public class of the three packages has the name of another one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_no_public_class_is_defined_twice() -> None:
    where = defaultdict[str, list[str]](list)
    for package in ("simulator", "compiler", "tuner"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where[node.name].append(path.relative_to(ROOT).as_posix())
    assert len(where) > 300
    assert {name: files for name, files in where.items() if len(files) > 1} == {}
