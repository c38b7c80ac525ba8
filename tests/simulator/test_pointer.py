"""Pointers keep no array alive, so they are made of arrays that a caller holds."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from simulator.pointer import pointer

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for top in ("compiler", "simulator", "tuner") for path in sorted((ROOT / top).rglob("*.py"))]
FILES = [path for path in SOURCES if "pointer(" in path.read_text()]


@njit
def _of_its_own(n: int) -> int:
    mine = np.zeros(n, np.int64)
    at = pointer(mine)  # the last line that names it
    other = np.full(n, 7, np.int64)
    return at[0] + 0 * other[0]


@njit
def _handed_in(mine: np.ndarray, n: int) -> int:
    at = pointer(mine)
    other = np.full(n, 7, np.int64)
    return at[0] + 0 * other[0]


def test_array_of_a_kernel_ends_before_its_pointer() -> None:
    """Why the next test is there: once it was memory that another thread of a worker had taken, which ended the worker."""
    if _of_its_own(6) == 0:
        pytest.skip("the allocator did not hand the same memory out again")
    assert _of_its_own(6) == 7
    assert _handed_in(np.zeros(6, np.int64), 6) == 0


def strays(source: str) -> list[str]:
    """Pointers of what is no parameter of the function around them, or no field of one, or has been given another value."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = function.args
        held = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        held -= {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "pointer":
                whose = call.args[0]
                while isinstance(whose, ast.Attribute):
                    whose = whose.value
                if not (isinstance(whose, ast.Name) and whose.id in held):
                    found.append(f"{function.name}:{call.lineno}: {ast.unparse(call)}")
    return found


def test_pointers_are_of_what_the_caller_holds() -> None:
    assert len(FILES) > 4
    for path in FILES:
        assert strays(path.read_text()) == [], path


@pytest.mark.parametrize(
    "body", ["a = np.zeros(3)\n    p = pointer(a)", "x = x + 1\n    p = pointer(x)", "p = pointer(x[1:])", "p = pointer(np.zeros(3))"]
)
def test_a_stray_pointer_is_seen(body: str) -> None:
    assert strays(f"def f(x, q):\n    {body}\n    r = pointer(q.ring)") == [f"f:{2 + body.count(chr(10))}: {body[body.index('pointer') :]}"]
