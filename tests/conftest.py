"""Options and fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Where it is set, every process that a test starts compiles the two hundred modules of the tree before it begins
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

GOLDEN_FOLDER = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the text goldens anew instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(file name, text): equal to tests/golden/<file name>, or written there with --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN_FOLDER / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"{path} is missing; run pytest --update-golden, read the diff, commit it"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; pytest --update-golden writes the new text"

    return check
