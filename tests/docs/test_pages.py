"""Every command and snippet of the documentation, in the order of its page, in a folder that holds a run of a small model.

Fast: `light:NAME` is the small model, budgets are tiny, scripts are only asked for their options.  Slow: README's commands as they stand.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import yaml

from compiler.plan.plan import ConvTiling, Plan, SegmentPlan, VectorTiling
from scripts.scale_cores import judge
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import configs_folder, load_machine
from simulator.npu.machine_parts import CubeUnit, DataPath, Ddr, Dma, Flags, Host, Product, SharedMemory, Sizes, SystolicUnit, VectorUnit
from tests.compiler.ethosu.models import model as tflite_model
from tests.docs.fences import PAGES, ROOT, blocks, commands
from tests.models import small_model
from tuner import config
from tuner.cli import main
from tuner.log.digests import canonical_json
from tuner.summary import DisplacedSummary, LevelSummary, RobustSummary, Summary

SETTINGS = {
    "model": {"min_rows": 20, "rounds": 10}, "segments": {"measured": 6, "candidates": 10},
    "search": {"generation": 4, "lag": 0}, "use": {"cost_model": True},
}  # fmt: skip
TINY = ("--backend", "serial", "--quiet")
TINY += tuple(word for part, values in SETTINGS.items() for key, value in values.items() for word in ("--set", f"{part}.{key}={value}"))
DEFAULT = configs_folder() / "tune" / "default.yaml"
FIRST, MORE = 8, 12  # programs of the run, and after --resume


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    onnx.save(small_model("conv_chain"), folder / "small.onnx")
    run = ["tune", str(folder / "small.onnx"), "--machine", "edge-shared", "--out", str(folder / "RUN"), "--candidates", str(FIRST), *TINY]
    assert main(run) == 0
    assert main(["report", str(folder / "RUN")]) == 0
    return folder


def smaller(words: list[str], model: Path) -> list[str]:
    """A documented command with a small model and a tiny budget; options stay, their values may not."""
    out = [str(model) if word.startswith("light:") else word for word in words]
    small = {"--candidates": str(MORE), "--seconds": "1", "--trials": "1", "--seeds": "1", "--measurements": "60"}
    out = [small.get(before, word) for before, word in zip(["", *out], out, strict=False)]
    if out[0] in ("tune", "study", "sweep"):
        out += (*TINY, "--set", "study.batch=1") if out[0] == "study" else TINY
    if out[0] == "tune" and "--candidates" not in out and "--seconds" not in out:
        out += ["--candidates", str(FIRST)]
    return out


ASK_SCRIPTS = """
import contextlib, io, json, re, runpy, sys
known = {}
for command in sys.argv[1:]:
    script, *name = command.split()
    sys.argv, shown = [script, *name, "--help"], io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    known[command] = sorted(set(re.findall(r"--[a-z][a-z-]*", shown.getvalue())))
print(json.dumps(known))
"""


def command_of(words: list[str]) -> str:
    """`scripts/study.py` has a command for every study."""
    return " ".join(words[1 : 3 if words[1] == "scripts/study.py" else 2])


@functools.cache
def options_of_scripts() -> dict[str, set[str]]:
    """Documented script, or study -> options.  One process without anything of the tests starts them all: what they import is the same."""
    documented = (words for page in PAGES for _, words in commands(page) if words[0] == "python" and (ROOT / words[1]).is_file())
    scripts = sorted({command_of(words) for words in documented})
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", ASK_SCRIPTS, *scripts], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {script: set(options) for script, options in json.loads(done.stdout).items()}


def run_command(words: list[str], model: Path, where: str) -> None:
    if words[0] == "tilefarm":
        assert main(smaller(words[1:], model)) == 0, where
    elif words[0] == "python" and words[1].startswith(("scripts/", "docs/")):
        assert (ROOT / words[1]).is_file(), where
        known = options_of_scripts()
        assert {word for word in words[2:] if word.startswith("--")} <= known[command_of(words)], where
    else:
        pytest.fail(f"{where}: nothing runs this; use a block of another language than console")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_snippets(page: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(commands(page))
    tunes = any(words[1] == "tune" and "RUN" in words and "--resume" not in words for words in found.values())
    if not tunes and not any('out="RUN"' in block.text for block in blocks(page, "python")):
        shutil.copytree(workspace / "RUN", tmp_path / "RUN")
    (tmp_path / "network.tflite").write_bytes(tflite_model("table_activations").data)
    monkeypatch.chdir(tmp_path)
    of_file = config._read
    tiny = {part: of_file(DEFAULT)[part] | values for part, values in SETTINGS.items()}
    monkeypatch.setattr(config, "_read", lambda path: of_file(path) | (tiny if path == DEFAULT else {}))  # of snippets, too
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.language == "yaml" and block.file:
            Path(block.file).write_text(block.text)
        if block.file:  # what a test of its own runs, or what commands read
            continue
        if block.language == "python":
            exec(compile(block.text, block.where, "exec"), names)
        elif block.language == "console":
            mine = [(where, words) for where, words in found.items() if where.startswith(f"{block.where}:")]
            assert mine, f"{block.where}: no line that starts with '$ '"
            for where, words in mine:
                run_command(words, workspace / "small.onnx", where)
    if page.name == "plan-file.md":
        assert Path("again.onnx").read_bytes() == Path("RUN/best.onnx").read_bytes()


def test_a_resumed_run_is_a_longer_run(workspace: Path, tmp_path: Path) -> None:
    """What README says of --resume with a larger budget."""
    shutil.copytree(workspace / "RUN", tmp_path / "resumed")
    levels = {}
    for name, more in (("resumed", ["--resume"]), ("fresh", [])):
        words = [
            "tune",
            str(workspace / "small.onnx"),
            "--machine",
            "edge-shared",
            "--out",
            str(tmp_path / name),
            "--candidates",
            str(MORE),
        ]
        assert main([*words, *more, *TINY]) == 0
        levels[name] = json.loads((tmp_path / name / "summary.json").read_text())["levels"]
    assert canonical_json(levels["resumed"]) == canonical_json(levels["fresh"])


@pytest.mark.slow
def test_readme_as_it_stands(tmp_path: Path) -> None:
    def tilefarm(line: str) -> None:
        words = line.split()[1:]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-m", "tuner", *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"

    install = blocks(PAGES[0], "sh")[0].text
    tilefarm(install.split("&&")[-1].strip())
    for _, words in commands(PAGES[0]):
        if words[0] == "tilefarm":
            tilefarm(" ".join(words))


# --- what is listed is what there is ---------------------------------------------------------------------------------------------


def rows(page: Path, heading: str) -> set[str]:
    """Names in backticks in the first column of the tables under a heading (to the next heading)."""
    text = page.read_text(encoding="utf-8")
    start = text.index(heading) + len(heading)
    stop = text.find("\n## ", start)
    cells = re.findall(r"^\| ([^|]*) \|", text[start : None if stop < 0 else stop], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_key_of_the_summary_is_described() -> None:
    parts = (Summary, LevelSummary, RobustSummary, DisplacedSummary)
    assert rows(ROOT / "docs/run-folder.md", "## summary.json") == {key for part in parts for key in part.model_fields}


def test_every_key_of_a_plan_is_described() -> None:
    keys: set[str] = set()
    for part in (Plan, SegmentPlan, ConvTiling, VectorTiling):
        keys |= set(part.model_fields)
    assert rows(ROOT / "docs/plan-file.md", "# The plan file") == keys
    for block in blocks(ROOT / "docs/plan-file.md", "json"):
        SegmentPlan.model_validate_json(block.text)


def test_every_key_of_a_machine_is_described() -> None:
    parts = (Machine, Sizes, CubeUnit, Product, SystolicUnit, VectorUnit, DataPath, Ddr, Dma, SharedMemory, Flags, Host, Level)
    described = rows(ROOT / "docs/machines.md", "## Field by field")
    assert {key for part in parts for key in part.model_fields} <= described


def test_other_matrix_units_may_replace_the_described_one(tmp_path: Path) -> None:
    page = ROOT / "docs/machines.md"
    example, _ = blocks(page, "yaml")
    (matrix,) = [block for block in blocks(page, "text") if block.text.startswith("matrix:")]
    (tmp_path / example.file).write_text(yaml.safe_dump(yaml.safe_load(example.text) | yaml.safe_load(matrix.text)))
    assert load_machine(str(tmp_path / example.file)).macs_per_cycle == {"float16": 2048, "float32": 256}


def test_machine_file_errors_are_those_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs/machines.md"
    example, _ = blocks(page, "yaml")
    monkeypatch.chdir(tmp_path)
    lacks, without = yaml.safe_load(example.text), yaml.safe_load(example.text)
    del lacks["buffers_bytes"]["L0C"], lacks["vector"], lacks["ddr"]["outstanding"]
    lacks["clock_hz"] = "1e9"
    without["paths"] = [path for path in without["paths"] if (path["source"], path["destination"]) not in (("L1", "UB"), ("UB", "L1"))]
    shown = next(block.text for block in blocks(page, "text") if block.text.startswith("tilefarm: ")).splitlines(keepends=True)
    for machine, said in zip((lacks, without), shown, strict=True):
        Path(example.file).write_text(yaml.safe_dump(machine))
        assert main(["machines", example.file]) == 2
        assert capsys.readouterr().err == said


def test_every_file_of_a_run_is_described(workspace: Path) -> None:
    named = rows(ROOT / "docs/run-folder.md", "# The run folder")
    patterns = [re.compile(re.sub(r"<\w+>", r"[\\w-]+", re.escape(name)).replace(r"\*", r"[^/]+")) for name in named]
    run = workspace / "RUN"
    for path in run.rglob("*"):
        name = str(path.relative_to(run))
        if path.is_file() and not (name.startswith("models/") and name.endswith(".json")):
            assert any(pattern.fullmatch(name) for pattern in patterns), f"{name} is not in docs/run-folder.md"
    sometimes = {name for name in named if f"| `{name}` | where " in (ROOT / "docs/run-folder.md").read_text(encoding="utf-8")}
    for name in named - sometimes - {".tmp/"}:
        assert list(run.glob(re.sub(r"<\w+>", "*", name))), f"{name} is described, but a run has none"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"
    # files of the tree that are named in backticks
    for name in re.findall(r"`((?:compiler|simulator|tuner|scripts|tests|configs|docs)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{page.name}: {name}"


@pytest.mark.parametrize(("option", "word"), [("--print-main-command", "tilefarm tune"), ("--print-test-command", "pytest")])
def test_ci_runs_the_two_commands_of_the_readme(option: str, word: str) -> None:
    done = subprocess.run(["bash", ".ci/run", option], cwd=ROOT, capture_output=True, text=True, check=True)
    line = done.stdout.strip()
    assert line.startswith("python -m venv ")
    assert word in line
    assert f"\n{line}\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_growth_is_of_one_measurement() -> None:
    import runpy

    made = runpy.run_path(str(ROOT / "docs/img/make_growth.py"))
    growth = json.loads((ROOT / "docs/img/growth.json").read_text())
    assert made["plot"](growth) == (ROOT / "docs/img/growth.svg").read_text()
    assert made["table"](growth) in (ROOT / "docs/scaling.md").read_text()
    assert all(figures["same_champions"] for figures in growth.values())


def test_speedups_are_of_one_measurement() -> None:
    import runpy

    made = runpy.run_path(str(ROOT / "docs/img/make_cores.py"))
    rows = [json.loads(line) for line in (ROOT / "docs/img/cores.jsonl").read_text().splitlines()]
    assert made["plot"](rows) == (ROOT / "docs/img/cores.svg").read_text()
    assert made["table"](rows) in (ROOT / "docs/studies.md").read_text()
    for row in rows:
        one = next(first["cycles"] for first in rows if (first["network"], first["frames"]) == (row["network"], row["frames"]))
        assert judge({key: row[key] for key in ("network", "frames", "cores", "cycles", "bound")}, one) == row


def test_pictures_and_tables_are_of_one_run() -> None:
    import runpy

    made = runpy.run_path(str(ROOT / "docs/img/make_result.py"))
    summary, kept = (json.loads((ROOT / f"docs/img/{name}.json").read_text()) for name in ("result", "switching"))
    again = "run: python docs/img/make_result.py"
    assert made["bars"](summary) == (ROOT / "docs/img/result.svg").read_text(), again
    assert made["steps"](kept) == (ROOT / "docs/img/switching.svg").read_text(), again
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert made["readme"](text, summary, kept) == text, again
    kind, seed, inferences = made["LOAD"]
    assert f"$ tilefarm simulate RUN/best.onnx --trace {kind}:{seed} --inferences {inferences}\n" in text
