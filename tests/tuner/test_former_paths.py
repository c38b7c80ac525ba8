"""Modules that plug-ins imported under other names: thin re-exports, which nothing here uses."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest

from tests.tuning import ROOT

FORMER = {  # former name -> module, a name that plug-ins import; a name that is new stands there by its former one
    "tuner.contracts.strategy": ("tuner.testing.strategy", "StrategyContract"),
    "tuner.contracts.cost_model": ("tuner.testing.cost_model", "CostModelContract"),
    "tuner.contracts.target": ("tuner.testing.target", "TargetContract"),
    "tuner.contracts.runner": ("tuner.testing.runner", "RunnerContract"),
    "tuner.learn.cost_model": ("tuner.cost_model.interface", "CostModel"),
    "tuner.measure.reading": ("tuner.measure.runner_api", "Encoded"),
    "tuner.measure.measurement": ("tuner.measure.request", "Measurement"),
    "tuner.measure.simulated": ("tuner.measure.simulator_runner", "measure"),
    "compiler.space.moves": ("compiler.space.mutators", "random_genome"),
    "compiler.segment.permuted": ("compiler.segment.reorder", "permute_to as permuted_to"),
}
SOURCES = [path for folder in ("compiler", "scripts", "simulator", "tests", "tuner") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize(("former", "module", "name"), [(former, *FORMER[former]) for former in FORMER])
def test_former_module_has_a_docstring_and_one_import(former: str, module: str, name: str) -> None:
    docstring, statement = ast.parse((ROOT / f"{former.replace('.', '/')}.py").read_text()).body
    assert isinstance(docstring, ast.Expr)
    assert f"`{module}`" in ast.unparse(docstring)
    assert isinstance(statement, ast.ImportFrom)
    new, _, old = name.partition(" as ")
    assert ast.unparse(statement) == f"from {module} import {name if old else '*'}"
    assert getattr(import_module(former), old or new) is getattr(import_module(module), new)


def test_nothing_here_imports_a_former_module() -> None:
    imports = {
        (path, node.module)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in FORMER
    }
    assert not imports
