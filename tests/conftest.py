"""Options and fixtures that every test may use."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from unittest import mock

import pytest
from _pytest.pathlib import import_path
from hypothesis import settings

from tests.kernels import compile_beside
from tuner.cli import kernel_progress

# Where it is set, every process that a test starts compiles the two hundred modules of the tree before it begins
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # to rewrite the asserts of all files takes twice as long as to collect them
# Ray starts a worker per CPU before it is asked for any, and a node of a test uses one or none
os.environ.update(RAY_enable_worker_prestart="0", RAY_prestart_worker_first_driver="0")
# Tests know all that a command says, but not whether a kernel is compiled in it
kernel_progress.EVERY_S, kernel_progress._FEW = float("inf"), 0
# Several processes of tests have a core each: threads of theirs would wait for one another, busily
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

# The first example of a test imports and loads kernels, on a computer that has other work: no time says that a property does not hold
settings.register_profile("untimed", parent=settings.default, deadline=None)
settings.load_profile("untimed")


def _in_memory() -> bool:
    """Whether files of tests may be: there is room, and a program among them can be run."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        return False
    facts = os.statvfs(memory)
    return not facts.f_flag & os.ST_NOEXEC and facts.f_bavail * facts.f_frsize >= ROOM_BYTES


ROOM_BYTES = 4 << 30
if _in_memory():  # a run fsyncs a hundred times, and hundreds of runs are made; on a disk each takes milliseconds, of nobody's time
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

GOLDEN_FOLDER = Path(__file__).parent / "golden"


# What needs no kernel comes first, while they are compiled; then what takes long, by folder: a process that is left with one of these at
# the end would work while the others wait
FIRST = (
    "compiler/frontend/onnx_io/test_memory_budget", "compiler/frontend/onnx_io/test_load", "compiler/frontend/test_translate",
    "compiler/frontend/partition/test_convex", "compiler/rewrites", "properties/test_bad_files", "properties/test_hostile_models",
    "properties/test_rewrite_properties", "scripts/test_help", "scripts/test_make_models", "simulated/test_disk",
    "simulator/test_kernel_cache", "tuner/selection/test_race", "tuner/measure/test_runners", "tuner/log/test_log", "tuner/platform",
    "tuner/farm/test_isolated_map", "tuner/study/test_study", "tuner",
    "simulated/test_seeds", "docs", "scripts", "system", "fuzz", "properties",
)  # fmt: skip


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
        if not config.option.collectonly:
            config.add_cleanup(compile_beside())


def pytest_collection(session: pytest.Session) -> None:
    """Each process of tests begins with another part of all files: to rewrite the asserts of one takes as long as to import it, and is
    done for all of them by who is there first."""
    if (worker := getattr(session.config, "workerinput", None)) is None or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    at = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[at:] + files[:at]:
        with contextlib.suppress(Exception):  # is told when it is collected
            import_path(file, root=session.config.rootpath, consider_namespace_packages=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    @functools.cache
    def rank(path: Path) -> int:
        name = path.relative_to(Path(__file__).parent).as_posix()
        return next((at for at, part in enumerate(FIRST) if name.startswith(part)), len(FIRST))

    items.sort(key=lambda item: rank(item.path))


def pytest_collection_finish() -> None:
    """What is imported and collected stays: to look for garbage among it again and again takes a good part of the time of all tests."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    # each search asks whether its caller has frozen anything; to count it takes as long as the search of a small test
    gc.get_freeze_count = functools.wraps(gc.get_freeze_count)(lambda: 1)


def pytest_unconfigure() -> None:
    gc.unfreeze()  # duckdb counts what nobody took away as the process ends


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the text goldens anew instead of comparing with them")


@pytest.fixture(scope="module", autouse=True)
def _values_are_compared_here(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Runs that tests make in their own process ask onnxruntime there as well; so does `run --check`."""
    with contextlib.ExitStack() as stack:
        if request.path.name != "test_reference.py":
            import tests.inline_reference

            stack.enter_context(mock.patch("tuner.verify.reference._run", tests.inline_reference.run))
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
