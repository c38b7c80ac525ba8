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


def test_no_set_of_words_is_declared_twice() -> None:
    """An option's values, the statuses of a task: one `Literal` each, so that what is added to one is added to all."""
    where = defaultdict[str, list[str]](list)
    for package in ("simulator", "compiler", "tuner"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and ast.unparse(node.value.value) == "Literal":
                    names = ", ".join(ast.unparse(target) for target in node.targets)
                    where[ast.unparse(node.value)].append(f"{path.relative_to(ROOT).as_posix()}: {names}")
    assert len(where) > 10
    assert {words: found for words, found in where.items() if len(found) > 1} == {}


def test_a_digest_is_of_one_thing() -> None:
    where = defaultdict[str, list[str]](list)
    for package in ("simulator", "compiler", "tuner"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef) and "digest" in node.name and not node.name.startswith("_"):
                    where[node.name].append(path.relative_to(ROOT).as_posix())
    assert len(where) > 3
    assert {name: files for name, files in where.items() if len(files) > 1} == {}
