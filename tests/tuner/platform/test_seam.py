"""The driver, the farm and the store ask `tuner.platform` for time, files and threads, and nobody else: so they run in a simulated one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TUNER = Path(__file__).resolve().parents[3] / "tuner"
SEAM = (
    "store/*.py", "runs/*.py", "log/*.py", "farm/*.py", "cost_model/trainer.py", "cost_model/model_file.py", "cost_model/interface.py",
    "measure/store_lookup.py", "measure/budgeted.py",
    "selection/finals_journal.py", "driver.py", "finalize/*.py",
)  # fmt: skip
MODULES = {
    "time", "threading", "os", "shutil", "tempfile", "socket", "fcntl", "mmap", "concurrent", "subprocess", "signal", "multiprocessing",
    "asyncio", "selectors", "glob", "io", "sched", "secrets", "random",
}  # fmt: skip
CALLS = {
    "open", "write_bytes", "write_text", "read_text", "unlink", "rename", "rmdir", "touch", "stat", "lstat", "symlink_to", "hardlink_to",
    "rglob", "samefile", "now", "utcnow", "today",
}  # fmt: skip
"""Of files that no place has, and of the time of day."""
REAL = {"tuner.platform.local_files", "tuner.platform.real"}
"""Which world it is, is said by who begins: the driver, and what it ends with, a file on this computer."""

OUTSIDE = {
    ("farm/search_spec.py", "tuner.platform.real"): "says which world, unless somebody else does",
    ("driver.py", "tuner.platform.local_files"): "says which world",
    ("driver.py", "tuner.platform.real"): "says which world",
    **{
        (f"finalize/{name}.py", "tuner.platform.local_files"): "ends with files that onnxruntime reads"
        for name in ("champions", "compile", "summary")
    },
    ("farm/isolated_map.py", "tuner.platform.real"): "says which world: studies and sweeps are not driven in another one",
}


def modules() -> dict[str, Path]:
    return {path.relative_to(TUNER).as_posix(): path for pattern in SEAM for path in TUNER.glob(pattern)}


def reaches(source: str) -> Iterator[str]:
    """What a module uses of the world without asking."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            names = [f"{name}()"] if name in CALLS else []
        else:
            continue
        yield from (name for name in names if name in REAL or name.endswith("()"))
        yield from (top for name in names if (top := name.partition(".")[0]) in MODULES)


def test_every_pattern_names_modules() -> None:
    assert all(any(TUNER.glob(pattern)) for pattern in SEAM)
    assert {"log/writer.py", "runs/checkpoint.py", "farm/search_run.py"} <= modules().keys()


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_module_asks_the_seam_only(name: str) -> None:
    found = {what for what in reaches(modules()[name].read_text()) if (name, what) not in OUTSIDE}
    assert not found, f"tuner/{name} uses {', '.join(sorted(found))}; ask tuner.platform"


def test_what_is_excepted_is_there() -> None:
    for name, what in OUTSIDE:
        assert what in reaches((TUNER / name).read_text()), f"tuner/{name} does without {what} now"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", ["time"]),
        ("import os.path as p", ["os"]),
        ("from concurrent.futures import ThreadPoolExecutor", ["concurrent"] * 2),
        ("def f():\n    from threading import Lock", ["threading"] * 2),
        ("from tuner.platform.real import REAL", ["tuner.platform.real"]),
        ("from tuner.platform import real", ["tuner.platform.real"]),
        ("x = open('a')", ["open()"]),
        ("(path / 'a').open('wb')", ["open()"]),
        ("datetime.now(UTC)", ["now()"]),
        ("path.write_bytes(b'')", ["write_bytes()"]),
        ("from tuner.platform.files import Place\nplace.put([])\nplace.fsync()\ntimes = path.read_bytes()", []),
    ],
)
def test_it_sees(source: str, found: list[str]) -> None:
    assert [*reaches(source)] == found
