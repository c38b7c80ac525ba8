"""The table of stages names functions that exist."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest

from compiler.compiler_stages import STAGES


@pytest.mark.parametrize("name", [name for stage in STAGES for name in (stage.function, stage.dumper) if name])
def test_a_stage_names_functions(name: str) -> None:
    assert callable(resolve_name(name))
