"""Runners: whatever a user's board, command or function does becomes a number, or one line that says why not, and leaves nothing behind."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from tests.messages import naming
from tests.tuning import ROOT
from tuner import plugins
from tuner.config import TuneConfig, load_config
from tuner.farm.board_finals import FinalsWorker
from tuner.farm.plugin_identity import external_plugins
from tuner.measure import simulator_runner
from tuner.measure.command_runner import CommandRunner
from tuner.measure.runner_api import Bench, Encoded, Reading
from tuner.measure.runners import RunnerSpec, find_runner
from tuner.measure.simulator_runner import measure
from tuner.platform.ray_cluster import worker_environment
from tuner.selection.race import FAILED, Turn

PROGRAM = Encoded(b"bytes of a program", load_machine("tiny"), "program")


def ask(tmp_path: Path, code: str, timeout_s: float = 5.0) -> Reading:
    """What a Python command of this text answers; `path` and `level` are its arguments."""
    script = tmp_path / "board.py"
    script.write_text(f"import json, os, subprocess, sys, time\n_, path, level = sys.argv\n{code}\n")
    return CommandRunner((sys.executable, str(script)), timeout_s)(PROGRAM, "severe")


def test_a_command_reads_the_container_and_answers(tmp_path: Path) -> None:
    code = "print('warming up'); print(json.dumps({'cycles': len(open(path, 'rb').read()) + len(level)}))"
    assert ask(tmp_path, code) == Reading(len(PROGRAM.container) + len("severe"))
    clock = PROGRAM.machine.clock_hz
    assert ask(tmp_path, "print(json.dumps({'seconds': 0.002, 'board': 7}))\nprint()") == Reading(round(0.002 * clock))


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("print('hello')", "invalid", "the last line is 'hello', expected"),
        ("", "invalid", "the last line is ''"),
        ("print('[1]')", "invalid", "expected {"),
        ("print(json.dumps({'cycles': 0}))", "invalid", "cycles 0, expected a whole number above 0"),
        ("print(json.dumps({'cycles': 1.5}))", "invalid", "cycles 1.5"),
        ("print(json.dumps({'cycles': True}))", "invalid", "cycles True"),
        ("print(json.dumps({'cycles': 1 << 62}))", "invalid", "cycles 4611686018427387904"),
        ("print(json.dumps({'seconds': True}))", "invalid", "seconds True"),
        ("print(json.dumps({'seconds': 1e6}))", "invalid", "seconds 1000000.0"),
        ("print('{\"seconds\": NaN}')", "invalid", "seconds nan"),
        ("print(json.dumps({'cycles': 3, 'seconds': 1.0}))", "invalid", "the last line is"),
        ("os.write(1, b'\\xff\\xfe\\n')", "invalid", "the last line is"),
        ("while True: print('x' * 1000)", "invalid", "more than 65,536 bytes of output: xxx"),
        ("print(json.dumps({'cycles': 3})); sys.exit('no board: \\n is it on?')", "crash", "ended with 1: is it on?"),
        ("os.kill(os.getpid(), 11)", "crash", "killed by SIGSEGV"),
        ("print('waiting', flush=True); time.sleep(60)", "timeout", "no end within 3 s: waiting"),
        ("os.close(1); os.close(2); time.sleep(60)", "timeout", "no end within 3 s"),
    ],
)
def test_what_a_command_does_wrong_is_one_line(tmp_path: Path, code: str, status: str, text: str) -> None:
    start = time.monotonic()
    reading = ask(tmp_path, code, 3.0 if status == "timeout" else 30.0)
    assert (reading.cycles, reading.status) == (None, status)
    assert reading.error is not None
    assert text in reading.error
    assert "\n" not in reading.error
    assert time.monotonic() - start < 20


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"


def test_a_command_asks_nobody(tmp_path: Path) -> None:
    ours, writer = os.pipe()
    before = os.dup(0)
    os.dup2(ours, 0)
    try:
        assert ask(tmp_path, "print(json.dumps({'cycles': 5 + len(sys.stdin.read())}))") == Reading(5)
    finally:
        os.dup2(before, 0)
        for each in (ours, writer, before):
            os.close(each)


def test_a_command_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """Killed, it has no time to see to that."""
    child = tmp_path / "child"
    code = f"import os, time; open({str(child)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    starts = f"import sys; from tuner.measure.command_runner import run; run([sys.executable, '-c', {code!r}], 60.0)"
    process = subprocess.Popen([sys.executable, "-c", starts], env={**os.environ, "PYTHONPATH": str(ROOT)})
    until = time.monotonic() + 60
    while not (child.is_file() and child.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    pid = int(child.read_text())
    assert alive(pid)
    process.kill()
    process.wait()
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pid)


@pytest.mark.parametrize("end", ["time.sleep(60)", "print(json.dumps({'cycles': 5}))"])
def test_a_command_takes_its_children_along(tmp_path: Path, end: str) -> None:
    """And does not wait for them, though they hold its output open."""
    child = tmp_path / "child"
    code = f"p = subprocess.Popen(['sleep', '60'])\nopen({str(child)!r}, 'w').write(str(p.pid))\n{end}"
    begun = time.monotonic()
    reading = ask(tmp_path, code, 30.0 if "cycles" in end else 4.0)
    assert time.monotonic() - begun < 20
    assert reading.status == ("ok" if "cycles" in end else "timeout")
    pid = int(child.read_text())
    until = time.monotonic() + 20
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pid)


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    reading = CommandRunner((str(tmp_path / "nothing"),))(PROGRAM, "none")
    assert reading == Reading(None, "crash", f"{tmp_path / 'nothing'}: cannot be started: No such file or directory")


# names


def test_runners_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_runner("simulator") is None
    assert RunnerSpec("simulator")() is None
    here = "tuner.measure.simulator_runner:measure"
    assert find_runner(here) is measure
    assert RunnerSpec(here, 3, 2)() == Bench(measure, 3, 2)
    found = find_runner(f"command:{sys.executable} -c 'a b'", 3.0)
    assert found == CommandRunner((sys.executable, "-c", "a b"), 3.0)
    assert RunnerSpec(f"command:{sys.executable}", 1, 1, 3.0)() == Bench(CommandRunner((sys.executable,), 3.0))
    monkeypatch.setattr(plugins, "entry_points", lambda group: [EntryPoint("board", here, group)])
    assert find_runner("board") is measure
    with pytest.raises(BadInputError, match=naming("--runner bord", "simulator, board", "module:name")):
        find_runner("bord")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no.such.module:f", "no module no; looked for in "),
        ("tuner.no_such:f", "no module tuner.no_such; looked for in "),
        ("tuner.measure.simulator_runner:nothing", f"has nothing to call by the name nothing ({simulator_runner.__file__})"),
        ("tuner.measure.runners:COMMAND", "has nothing to call by the name COMMAND"),
        ("sys:nothing", "sys has nothing to call by the name nothing (built in)"),
        (":f", "Empty module name"),
        ("command:", "nothing: no such command here"),
        ("command:/no/such/board --fast", "/no/such/board: no such command here"),
        ("command:'", "No closing quotation"),
    ],
)
def test_names_that_are_no_runner(name: str, text: str) -> None:
    with pytest.raises(BadInputError, match=f"--runner {name}") as caught:
        find_runner(name)
    assert text in str(caught.value)


def board(name: str) -> TuneConfig:
    return load_config(None).given({"runner.name": name})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_current_folder_is_searched_first(here: Path) -> None:
    spec = RunnerSpec("bench_of_mine:measure")
    with pytest.raises(BadInputError) as caught:
        external_plugins(board(spec.name), True, None)
    folders = str(caught.value).partition("looked for in ")[2]
    assert folders.startswith(f"{here}, ")
    assert folders.endswith(f"and in what is installed in {sys.prefix}")
    importlib.invalidate_caches()
    (here / "bench_of_mine.py").write_text("import parts_of_mine\ndef measure(program, level):\n    return parts_of_mine.reading()\n")
    with pytest.raises(BadInputError, match=naming(spec.name, "bench_of_mine", "ModuleNotFoundError", "'parts_of_mine'")):
        external_plugins(board(spec.name), True, None)
    importlib.invalidate_caches()
    (here / "parts_of_mine.py").write_text("def reading(:")
    with pytest.raises(BadInputError, match=naming(spec.name, "bench_of_mine", "SyntaxError", "parts_of_mine.py", "line 1")):
        external_plugins(board(spec.name), True, None)
    importlib.invalidate_caches()
    (here / "parts_of_mine.py").write_text("from tuner.measure.runner_api import Reading\ndef reading():\n    return Reading(12345)\n")
    external_plugins(board(spec.name), True, None)
    bench = spec()
    assert bench is not None
    assert bench.once(PROGRAM, "none") == Reading(12345)
    assert worker_environment()["PYTHONPATH"].split(os.pathsep)[0] == str(here), "workers look there, too, wherever they are"


def test_local_workers_look_for_the_runner_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    spec = RunnerSpec("no.such.module:f")
    for serial, address in ((True, "head:6379"), (False, None), (False, "local")):
        with pytest.raises(BadInputError, match="no module no"):
            external_plugins(board(spec.name), serial, address)
    external_plugins(board(spec.name), False, "head:6379")
    external_plugins(load_config(None), True, None)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    external_plugins(board(spec.name), False, None)


# repeats and noise


def test_the_median_of_the_repeats_levels_in_turns() -> None:
    asked: list[str] = []

    def noisy(program: Encoded, level: str) -> Reading:
        asked.append(level)
        return Reading(100 * len(level) + [0, 50, 7][asked.count(level) - 1])

    assert Bench(noisy, 3).cycles(PROGRAM, ["none", "severe"]) == [407, 607]
    assert asked == ["none", "severe"] * 3


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (17, "invalid", "answered 17, expected a Reading"),
        (Reading(1.5), "invalid", "1.5 cycles"),  # type: ignore[arg-type]
        (Reading(0), "invalid", "0 cycles"),
        (Reading(True), "invalid", "True cycles"),
        (Reading(None, "timeout", "too\nlong"), "timeout", "too long"),
        (Reading(5, "crash"), "crash", "no reason given"),
        (ZeroDivisionError("x"), "crash", "ZeroDivisionError: x"),
    ],
)
def test_what_a_function_answers_wrongly(answer: object, status: str, text: str) -> None:
    def wrong(program: Encoded, level: str) -> Reading:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    failed = Bench(wrong, 2).cycles(PROGRAM, ["none"])
    assert isinstance(failed, Reading)
    assert failed.status == status
    assert failed.error is not None
    assert text in failed.error


def test_time_is_positive_and_reason_a_readable_line() -> None:
    assert Reading.of_seconds(1e-15, PROGRAM.machine) == Reading(1)
    failed = Bench(lambda program, level: Reading(None, "crash", "x " * 1000)).once(PROGRAM, "none")
    assert failed == Reading(None, "crash", ("x " * 250))


def test_a_reading_that_fails_is_taken_again() -> None:
    asked: list[str] = []

    def flaky(program: Encoded, level: str) -> Reading:
        asked.append(level)
        if len(asked) % 3:
            raise OSError(f"no luck {len(asked)}")
        return Reading(100)

    assert Bench(flaky, 2, 3).cycles(PROGRAM, ["none", "severe"]) == [100, 100]
    assert asked == ["none"] * 3 + ["severe"] * 3 + ["none"] * 3 + ["severe"] * 3
    assert Bench(flaky, 2, 2).cycles(PROGRAM, ["none"]) == Reading(None, "crash", "OSError: no luck 14"), "the last of its tries"
    assert len(asked) == 14


def test_worker_of_finals_reads_turns_in_order() -> None:
    asked: list[bytes] = []

    def board(program: Encoded, level: str) -> Reading:
        asked.append(program.container)
        return Reading(None, "timeout", "slow") if program.container == b"1" else Reading(7 + len(level))

    programs = tuple(PROGRAM._replace(container=text) for text in (b"0", b"1", b"2"))
    worker = FinalsWorker(Bench(board, 5, 2), programs)
    assert [worker(Turn("none", (2, 1, 0))), worker(Turn("severe", (0,)))] == [[11, FAILED, 11], [13]]
    assert asked == [b"2", b"1", b"1", b"0", b"0"], "one reading each, not the median of 5; two tries"
