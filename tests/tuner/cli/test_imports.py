"""Small commands import what they use: by what is there when they are done, not by a clock (that is `scripts/bench_cli.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuning import ROOT, quick, save_small
from tuner.cli import COMMANDS

NUMBERS = {"numpy", "numba", "pandas", "pyarrow"}
WORKERS = {"onnx", "onnxruntime", "ray", "xgboost", "optuna", "plotly", "compiler.pipeline", "compiler.build", "tuner.driver"}
MODELS = {"pydantic", "yaml", "rich.markdown", "rich.table"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    quick(save_small("conv_chain", folder), folder / "run", 4)
    return folder / "run"


@pytest.mark.parametrize(
    ("words", "needless"),
    [
        ("--help", NUMBERS | WORKERS | MODELS | {"json", "importlib.metadata", "simulator.kernel_cache"}),
        ("ls RUN", NUMBERS | WORKERS | {"yaml", "rich.table"}),
        ("best RUN", NUMBERS | WORKERS | {"yaml", "rich.table"}),
        ("plan show RUN/plans/none.json", NUMBERS | WORKERS | {"yaml", "rich.table", "simulator.npu.machine"}),
        ("plan diff RUN/plans/none.json RUN/plans/baseline.json", NUMBERS | WORKERS | {"yaml", "rich.table", "simulator.npu.machine"}),
        ("status RUN", WORKERS | {"numba", "pandas", "pyarrow.compute"}),
        ("compare RUN RUN", WORKERS | {"numba", "pandas", "pyarrow.compute"}),
        ("doctor", NUMBERS | WORKERS),
    ],
)
def test_nothing_is_imported_in_vain(run, words, needless):
    code = (
        "import sys; from tuner.cli import main; code = main(sys.argv[1:])\n"
        "modules = sorted(sys.modules)\n"
        "import json; print(); print(json.dumps([code, modules]))"
    )
    asked = [sys.executable, "-c", code, *words.replace("RUN", str(run)).split()]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    exit_code, modules = json.loads(done.stdout.splitlines()[-1])
    assert exit_code == 0
    assert needless & set(modules) == set()


def test_no_help_imports_what_the_command_does():
    code = (
        "import sys; from tuner.cli import COMMANDS, main\n"
        "assert not [name for name in COMMANDS if f'tuner.cli.{name}' in sys.modules]\n"
        "for name in COMMANDS: assert main([name, '--help']) == 0\n"
        "import json; print(); print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert {f"tuner.cli.{name}" for name in COMMANDS} <= modules
    assert (NUMBERS | WORKERS | MODELS) & modules <= {"pydantic"}  # which some versions of typer import
