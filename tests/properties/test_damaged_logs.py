"""A log that was damaged in any way: a command refuses in one line, or answers as before; once repaired, it says what was lost."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compiler.model import lower_model
from compiler.plan.plan import Plan, parse_plan
from simulator.npu.errors import TilefarmError
from tests.rows import write_part
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.farm.recorder import FEATURE_SETS
from tuner.farm.warm_start import lines, read_warm_start, sources
from tuner.log.part import part_name, read_part
from tuner.log.part_counts import FILE as COUNTS
from tuner.log.read import read_log, read_tasks
from tuner.log.writer import Origin, RunLog
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.checkpoint import Checkpoint
from tuner.runs.folder import read_json
from tuner.runs.model_source import read_source
from tuner.runs.repair import lost_rows, repair_run, verify_run

FEW = 2
MANY = 200
AGES = re.compile(r'"last_row_age_s": [0-9.]+|newest row .* ago')
Damage = Callable[[Path, random.Random], None]


def parts(run: Path, rng: random.Random) -> list[Path]:
    """Of a dataset that has some."""
    found = [sorted((run / name).glob("*.parquet")) for name in ("log", "log", "tasks")]
    return rng.choice([paths for paths in found if paths])


def any_part(run: Path, rng: random.Random) -> Path:
    return rng.choice([path for path in parts(run, rng) if path.is_file() and path.stat().st_size > 12])


def rewritten(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def footer(data: bytes | bytearray) -> int:
    """Where it begins."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def cut(run: Path, rng: random.Random) -> None:
    path = any_part(run, rng)
    size, at = path.stat().st_size, footer(path.read_bytes())
    os.truncate(path, rng.choice([rng.randrange(size), 0, 3, 4, 8, 12, at - 1, at, at + 1, size - 8, size - 5, size - 4, size - 1]))


def flip(run: Path, rng: random.Random) -> None:
    def change(data: bytearray) -> None:
        at = footer(data)
        lo, hi = rng.choice([(0, 4), (4, at), (at, len(data) - 8), (at, len(data) - 8), (len(data) - 8, len(data))])
        data[rng.randrange(lo, hi)] ^= 1 << rng.randrange(8)

    rewritten(any_part(run, rng), change)


def flip_the_mark(run: Path, rng: random.Random) -> None:
    def change(data: bytearray) -> None:
        at = data.rindex(b"tilefarm part ")
        data[at + rng.randrange(120)] ^= 1 << rng.randrange(8)

    rewritten(any_part(run, rng), change)


def zero(run: Path, rng: random.Random) -> None:
    def change(data: bytearray) -> None:
        at, count = rng.randrange(len(data)), rng.choice([1, 8, 100, 4096])
        data[at : at + count] = bytes(len(data[at : at + count]))

    # zeros among zeros would be no damage
    rewritten(any_part(run, rng), lambda data: (change(data), data.__setitem__(slice(0, 1), b"\0")))


def longer(run: Path, rng: random.Random) -> None:
    path = any_part(run, rng)
    data = path.read_bytes()
    path.write_bytes(rng.choice([data + b"\0", data + data, b"\0" + data, data + data[-8:]]))


def sparse(run: Path, rng: random.Random) -> None:
    os.truncate(any_part(run, rng), 1 << 40)


def swap(run: Path, rng: random.Random) -> None:
    found = parts(run, rng)
    one, two = rng.sample(found, 2)
    if rng.random() < 0.3:
        two = run / {"log": "tasks", "tasks": "log"}[one.parent.name] / one.name
    if not two.exists():
        return
    one.rename(run / "held")
    two.rename(one)
    (run / "held").rename(two)


def delete(run: Path, rng: random.Random) -> None:
    found = parts(run, rng)
    for path in rng.choice([found[-1:], found[-2:], found[:1], [rng.choice(found)], found[1::2], found]):
        path.rename(run / ".tmp" / "gone") if path.is_dir() else path.unlink()


def delete_folder(run: Path, rng: random.Random) -> None:
    folder = run / rng.choice(["log", "tasks"])
    shutil.rmtree(folder)
    if rng.random() < 0.5:
        folder.mkdir()


def duplicate(run: Path, rng: random.Random) -> None:
    found = parts(run, rng)
    path, count = rng.choice(found[1:]), len(found)
    name = rng.choice([part_name(count), part_name(count + 3), part_name(99_999_999), f"{int(path.stem)}.parquet",
                       f"{path.stem} (copy).parquet", f"{path.stem}٣.parquet"])  # fmt: skip
    shutil.copy(path, path.with_name(name))


def rename(run: Path, rng: random.Random) -> None:
    path = any_part(run, rng)
    path.rename(path.with_name(rng.choice([f"{path.stem}.old", part_name(77), f"{path.stem}.parquet.bak", f".{path.name}"])))


def replace(run: Path, rng: random.Random) -> None:
    path = any_part(run, rng)
    table = read_part(LocalPath(path)).table
    path.unlink()
    kind = rng.randrange(9)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to(path.name)
    elif kind == 2:
        path.symlink_to("/nowhere/at/all")
    elif kind == 3:
        os.mkfifo(path)
    elif kind == 4:
        pq.write_table(pa.table({"a": [1]}), path)
    elif kind == 5:
        path.write_text("cycle,share\n")
    elif kind == 6:  # as an earlier version wrote it
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"schema_version": b"1"}), path)
    elif kind == 7:
        write_part(path, table.drop_columns(table.column_names[-1:]))
    else:
        pq.write_table(table, path)


def stray(run: Path, rng: random.Random) -> None:
    folder = run / rng.choice(["log", "tasks"])
    (folder / rng.choice(["notes.txt", "00000002.parquet.part", "99999999.parquet", "x.parquet", "00000099.parquet"])).write_bytes(
        b"rubbish"
    )


def counts(run: Path, rng: random.Random) -> None:
    path = run / COUNTS
    rewritten(
        path, rng.choice([bytearray.clear, lambda data: data.__setitem__(rng.randrange(len(data) - 1), 0), lambda data: data.reverse()])
    )


def deny(run: Path, rng: random.Random) -> None:
    any_part(run, rng).chmod(0)


DAMAGES: tuple[Damage, ...] = (
    cut, cut, flip, flip, flip, flip_the_mark, zero, longer, sparse, swap, delete, delete, delete_folder, duplicate, rename, replace,
    replace, replace, stray, counts, *([deny] if os.geteuid() else []),
)  # fmt: skip


class Farm:
    """One run that is damaged again and again, in one place, and what commands said of it while it was whole."""

    def __init__(self, room: Path) -> None:
        self.whole: dict[str, tuple[int, str]] = {}
        self.room, self.run, self.good, self.other = room, room / "run", room / "good", room / "other"
        model = save_small("conv_chain", room)
        quick(model, self.run, 8)
        shutil.copytree(self.run, self.good)
        quick(model, self.other, 4, seed=1)
        opened = lower_model(read_source(LocalPath(self.run)).source)
        self.target_graph, self.levels = opened.target_graph, tuple(opened.machine.contention)
        programs = read_tasks(self.run).query("kind == 'program'")["payload"]
        kept = {parse_plan(path.read_text()).digest for path in (self.run / "plans").rglob("*.json")}
        measured = {Plan.model_validate(json.loads(payload)["plan"]).digest for payload in programs}
        self.plan = min(measured - kept)  # which nothing but tasks/ has
        identity = read_json(self.run / "run.json")
        self.origin = Origin(identity["run"], identity["model"], identity["machine"], identity["simulator"])

    def restore(self) -> None:
        shutil.rmtree(self.run)
        shutil.copytree(self.good, self.run)

    def commands(self) -> dict[str, tuple[str, ...]]:
        run, other, out = str(self.run), str(self.other), str(self.room / "out")
        return {
            "status": ("status", run),
            "status --json": ("status", run, "--json"),
            "best": ("best", run, "--json"),
            "ls": ("ls", run),
            "compare": ("compare", run, other, "--json"),
            "compare with it": ("compare", other, run),
            "report": ("report", run, "--out", out),
            "export": ("export", run, "--plan", self.plan, "--out", out),
            "log verify": ("log", "verify", run),
            "log compact": ("log", "compact", run, "--out", out),
            "log migrate": ("log", "migrate", run, "--out", out),
        }

    def answers(self, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, int, str]]:
        """(command, exit code, all that it printed and wrote, or the line that refused)."""
        out = self.room / "out"
        for name, words in self.commands().items():
            capsys.readouterr()
            code = main(words)
            shown = capsys.readouterr()
            text = AGES.sub("", shown.out) if code != 2 else shown.err
            if out.is_dir():
                text += "".join(read(out).sort_values("task", kind="stable").to_csv() for read in (read_log, read_tasks))
                shutil.rmtree(out)
            elif out.exists():
                text += out.read_bytes().decode(errors="replace")
                out.unlink()
            yield name, code, text
        for name, act in (("--warm-start", self.warm_start), ("--resume", self.resume)):
            try:
                yield name, 0, act()
            except TilefarmError as error:
                yield name, error.exit_code, f"tilefarm: {error}"

    def warm_start(self) -> str:
        """All that a run that begins with this one reads of it."""
        said, found = sources([self.run], self.room, False), read_warm_start([self.run], self.target_graph, self.levels, 4)
        arrays = (found.moved_bytes, found.cycles)
        return f"{said} {[*lines(found)]} {found.tasks} {found.genes} {found.programs} {[array.tolist() for array in arrays]}"

    def resume(self) -> str:
        """All that a run that goes on reads of its log."""
        with RunLog(LocalPath(self.run), REAL, self.origin, FEATURE_SETS) as log:
            found = Checkpoint(LocalPath(self.run / "checkpoint"), log).load()
            lost = "rows were lost" if log.lost else ""
            return f"{log.numbers.beyond([])} {found} {lost}"


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Farm:
    return Farm(tmp_path_factory.mktemp("farm"))


LOST = re.compile(r'lost_rows": [\[{]?\s*("\w+": )?[1-9]|rows lost|were lost|has lost')
DAMAGED = re.compile(r"tilefarm: .*(`(tilefarm )?log (repair|migrate)|/log\b|/tasks\b).*\n?")


def read(run: Path) -> str:
    return "".join(read(run).to_csv() for read in (read_log, read_tasks))


@pytest.mark.parametrize("damage", dict.fromkeys(DAMAGES), ids=lambda damage: damage.__name__)
def test_the_reader_takes_nothing_else_for_the_log(farm: Farm, damage: Damage) -> None:
    """Every kind twice, without commands."""
    whole = read(farm.good)
    for seed in range(2):
        farm.restore()
        damage(farm.run, random.Random(seed))
        try:
            assert read(farm.run) == whole
        except TilefarmError as error:
            assert re.search(r"`tilefarm log repair \S+`", str(error)), error  # noqa: PT017
        repair_run(farm.run)
        assert verify_run(farm.run) == []
        if not lost_rows(farm.run):
            assert read(farm.run) == whole


@pytest.mark.parametrize("seed", [*range(FEW), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(FEW, MANY))])
def test_any_damage_is_said_or_does_not_matter(farm: Farm, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    farm.restore()
    if not farm.whole:
        farm.whole.update({name: (code, text) for name, code, text in farm.answers(capsys)})
        assert {code for code, _ in farm.whole.values()} == {0}
    rng = random.Random(seed)
    damage = DAMAGES[seed % len(DAMAGES)]
    damage(farm.run, rng)
    if rng.random() < 0.25 and damage is not counts:
        rng.choice([cut, flip, delete, stray, replace])(farm.run, rng)
    said = 0
    for name, code, text in farm.answers(capsys):
        if (code, text) != farm.whole[name]:
            assert code == (1 if name == "log verify" else 2), (name, text)
            assert name == "log verify" or DAMAGED.fullmatch(text), (name, text)
            said += 1
    assert said > 3 or damage in (swap, rename), "nothing noticed it"
    assert main(["log", "repair", str(farm.run)]) == 0
    lost = lost_rows(farm.run)
    for name, code, text in farm.answers(capsys):
        if (code, text) != farm.whole[name]:
            assert lost, (name, text)
            assert LOST.search(text), (name, text)
            assert code == 0 or (code == 2 and len(text.splitlines()) == 1), (name, text)
    assert len(pd.read_parquet(farm.run / "log")) == len(read_log(farm.run)) == len(read_log(farm.good)) - lost.get("log", 0)
