"""Words of the source: no name without a meaning, no file name with two, docstrings that begin with a noun or a verb; names of tests."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("simulator", "compiler", "tuner")
VAGUE = frozenset((
    "at", "found", "each", "mine", "what", "left", "made", "kept", "known", "told", "whole", "rest", "other", "others", "own", "here",
    "there", "apart", "alone", "again", "behind", "most", "lacks", "ours", "theirs",
))  # fmt: skip
"""Pronouns, participles and the like, which say nothing of the value that they name."""
KEYS_OF_FILES = {"tuner/audit/report_types.py": ("behind", "others", "own", "what")}
"""Fields by module that are keys of JSON: others read them."""
FILLERS = frozenset(("result", "item", "value", "data", "tmp", "res", "x"))
FILLER_SHARE = 0.02  # of all assignments
TEST_WORDS = 8
OPENINGS = re.compile(r"(What|Who|Whose|Where|Whoever|Whatever|How it|That which)\b")

SAME_BASE_NAME = {
    # one operator, in one file per layer of the compiler
    "conv": "operator", "relayout": "operator", "elementwise": "operator", "matmul": "operator", "norm": "operator",
    "pool": "operator", "pooling": "operator", "reflow": "operator", "resample": "operator", "softmax": "operator", "windows": "operator",
    "base": "the class that the others of a folder derive from", "tables": "lookup tables: their arithmetic, and rewrites of it",
    "fixed_point": "fixed-point arithmetic, and its verification",
    # a value and its text, command or test kit
    "graph": "dump", "plan": "dump and command", "segments": "dump and command", "target_graph": "dump",
    "cost_model": "test kit", "runner": "test kit", "strategy": "test kit", "target": "test kit",
    "sweep": "command", "trace": "command",
    # one idea at two levels
    "api": "the public functions of a package", "champions": "best programs, of a search and shared by runs",
    "files": "atomic writes, and the interface over file systems", "float_range": "limits of a data type, and weights beyond them",
    "frames": "several frames in a run", "hazards": "order of accesses, made and checked", "level_limits": "memory that a level grants",
    "load": "reading a model", "macs": "multiply-accumulates", "persistent": "tensors on chip over segments",
    "read": "reader of a package's files", "write": "writer of a package's files", "segmentation": "division into segments",
    "shared_memory": "memory that cores share", "strips": "ranges of columns",
    "compile": "command, and the compiled file of a run", "summary": "of a run: its keys, and what writes it",
}  # fmt: skip
"""Base names of several files of the packages, and why: they are of one thing."""


@cache
def modules() -> dict[Path, ast.Module]:
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))}


def assignments() -> Iterator[tuple[Path, ast.Name]]:
    for path, tree in modules().items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def test_no_name_is_a_pronoun_or_participle() -> None:
    vague = ((path, name) for path, name in assignments() if name.id in VAGUE and name.id not in KEYS_OF_FILES.get(path.as_posix(), ()))
    assert [f"{path}:{name.lineno}: {name.id}" for path, name in vague] == []


def test_names_that_fit_anything_are_few() -> None:
    names = Counter(name.id in FILLERS for _, name in assignments())
    assert names[True] <= FILLER_SHARE * names.total()


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_noun_or_a_verb(package: str) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = ((path, node) for path, tree in modules().items() if path.parts[0] == package for node in ast.walk(tree))
    docs = ((path, node, ast.get_docstring(node) or "") for path, node in nodes if isinstance(node, documented))
    assert [f"{path}: {doc.splitlines()[0]}" for path, _, doc in docs if OPENINGS.match(doc)] == []


def test_a_base_name_means_one_thing() -> None:
    names = Counter(path.stem for path in modules() if path.stem not in ("__init__", "__main__"))
    assert {name for name, count in names.items() if count > 1} == SAME_BASE_NAME.keys()


def test_names_of_tests_are_short_and_unique() -> None:
    """A second test of the same name in a module or a class hides the first one silently."""
    long, twice = [], []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for scope in ast.walk(ast.parse(path.read_text())):
            if isinstance(scope, ast.Module | ast.ClassDef):
                names = [node.name for node in scope.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
                long += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.count("_") > TEST_WORDS]
                twice += [f"{path.relative_to(ROOT)}: {name}" for name, count in Counter(names).items() if count > 1]
    assert (long, twice) == ([], [])
