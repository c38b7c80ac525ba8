"""Options and fixtures that every test may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from pathlib import Path
from unittest import mock

import pytest

# Where it is set, every process that a test starts compiles the two hundred modules of the tree before it begins
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Several processes of tests have a core each: threads of theirs would wait for one another, busily
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

GOLDEN_FOLDER = Path(__file__).parent / "golden"


# What takes long comes first: a process that is left with one of these at the end would work while the others wait
LONG_FIRST = ("tuner", "docs", "scripts", "system", "properties")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With -n, the tests of a file are one process's, so that what they share is made once; files are taken in their order.

    A process that dies ends the run, which names the test.  With another in its place, pytest-xdist 3.8 gives the others
    files of which nothing is left to do, and waits for ever (its issue 1378).
    """
    if getattr(config.option, "numprocesses", None):
        if config.option.dist == "no":
            config.option.dist, config.option.loadscopereorder = "loadfile", False
        if config.option.maxworkerrestart is None:
            config.option.maxworkerrestart = "0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)

    items.sort(key=rank)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the text goldens anew instead of comparing with them")


@pytest.fixture(scope="module", autouse=True)
def _values_are_compared_here(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Runs that these tests make in their own process ask onnxruntime there as well; so does `run --check`."""
    parts = request.path.relative_to(Path(__file__).parent).parts
    with contextlib.ExitStack() as stack:
        if parts[0] in ("tuner", "docs", "scripts") and parts[-1] != "test_reference.py":
            import tests.inline_reference

            stack.enter_context(mock.patch("tuner.checks.reference._run", tests.inline_reference.run))
        yield


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
