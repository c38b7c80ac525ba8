"""`--help` of every script says what it does, and does nothing else."""

from __future__ import annotations

import ast

import pytest

from tests.docs.fences import ROOT

SCRIPTS = [
    path
    for folder in ("scripts", "docs/img")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_help_is_a_sentence(path):
    body = ast.parse(path.read_text(encoding="utf-8")).body
    start = body[-1]
    assert isinstance(start, ast.If)
    call = start.body[-1].value
    if ast.unparse(call).startswith("typer.run(command("):  # of a study: its sentence is the second argument
        said = ast.literal_eval(call.args[0].args[1])
    else:
        assert ast.unparse(call) in ("typer.run(main)", "main()")
        (main,) = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "main"]
        said = ast.get_docstring(main)
    assert len((said or "").split()) >= 6
