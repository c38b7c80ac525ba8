"""A bundle: what it holds is the compiled model, by the words of its own README; what does not match is refused by name."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.build import build_variants, containers_of, default_plans, measure
from compiler.model import ModelSpec, lower_model
from simulator.build_controller_table import controller_table
from simulator.bundle.bundle_files import MANIFEST, Manifest, pretty_json
from simulator.bundle.read import read_bundle, read_model
from simulator.bundle.write import write_bundle
from simulator.compiled import Compiled, CompiledPiece, read_compiled
from simulator.controller import EstimatorRule, Observation, ThresholdRule
from simulator.functional import execute
from simulator.npu.container import Container, Variant
from simulator.npu.container_file import decode, encode
from simulator.npu.controller_table import ControllerTable
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.program import Program
from simulator.response import Response, measure_response, prepared_variants
from simulator.session import InferenceSession
from simulator.timing import prepare
from tests.c_rules import SANITIZER, compiled_program
from tests.contended import two_variants
from tests.docs.fences import blocks
from tests.messages import mentions
from tests.models import small_model
from tests.piece_models import piece_model
from tests.programs import memory_map
from tests.programs import program as small_program
from tests.simulator.test_runtime import load, vector

EDGE, TINY = load_machine("edge"), load_machine("tiny")
DATA_PARTS = (
    "memory.json", "piece0/weights.bin", "piece0/none.stream.bin", "piece0/severe.stream.bin", "controller.json", "table.h", "controller.h",
    "controller.c", "README.md",
)  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_variants(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(file: Path) -> Path:
    """A bundle that no test changes."""
    write_bundle(read_compiled(file), file.parent / "bundle", str(file))
    return file.parent / "bundle"


@pytest.fixture
def bundle(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


def containers(compiled: Compiled) -> list[tuple[str, bytes]]:
    return [(piece.name, encode(piece.container)) for piece in compiled.pieces]


# what it holds ---------------------------------------------------------------------------------------------------------


def test_it_is_the_compiled_model(file: Path, whole: Path) -> None:
    assert containers(read_bundle(whole)) == containers(read_compiled(file)) == containers(read_model(whole))
    assert {str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file()} == {MANIFEST, *DATA_PARTS}
    x = np.random.default_rng(1).standard_normal((1, 3, 20, 24), np.float32)
    one, two = InferenceSession(whole), InferenceSession(file)
    for level in EDGE.contention:
        for mine, theirs in zip(one.run(None, {"x": x}, level=level), two.run(None, {"x": x}, level=level), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_several_pieces(tmp_path: Path) -> None:
    onnx.save(piece_model("chain"), tmp_path / "chain.onnx")
    opened = lower_model(ModelSpec(tmp_path / "chain.onnx", EDGE))
    made = containers_of(opened, measure(opened, dict.fromkeys(EDGE.contention, default_plans(opened))))
    assert len({c.controller.digest for c in made if c.controller is not None}) == 1
    compiled = Compiled(tuple(CompiledPiece(name, decode(encode(c))) for name, c in zip(opened.names, made, strict=True)))
    write_bundle(compiled, tmp_path / "bundle", "chain")
    assert containers(read_bundle(tmp_path / "bundle")) == containers(compiled)
    assert sorted(p.name for p in tmp_path.glob("bundle/piece*")) == [f"piece{k}" for k in range(len(made))]
    assert f"in {len(made)} pieces" in (tmp_path / "bundle/README.md").read_text()
    session = InferenceSession(tmp_path / "bundle")
    with pytest.raises(BadInputError, match="missing"):  # of the second piece: what the host makes is not in a bundle
        session.run(None, {port.name: np.zeros(port.shape, np.float32) for port in session.get_inputs()})


def test_memory_and_streams_are_as_its_readme_says(file: Path, whole: Path) -> None:
    """Values laid out by the formulas of the README, word for word, and records cut by its numbers."""
    memory = json.loads((whole / "memory.json").read_text())
    (piece,) = memory["pieces"]
    compiled = read_compiled(file)
    stream = piece["streams"][piece["variants"][0]["stream"]]
    words = np.frombuffer((whole / stream["file"]).read_bytes(), "<i4").reshape(-1, 32)
    cores = np.split(words, np.cumsum(stream["instructions"])[:-1])
    assert len(words) * memory["record_bytes"] == (whole / stream["file"]).stat().st_size
    ddr = np.full(piece["size_blocks"] * 32, 0xFF, np.uint8)
    weights = np.fromfile(whole / piece["weights"], np.uint8)
    ddr[: weights.size] = weights
    values = ddr.view(np.float16)
    x = np.random.default_rng(2).standard_normal((1, 3, 20, 24), np.float32)
    inputs, outputs = ([b for b in piece["buffers"] if b["kind"] == kind] for kind in ("input", "output"))
    assert {b["pixel_lanes"] for b in (*inputs, *outputs)} == {4, 16}
    for buffer in inputs:
        values[buffer["offset_blocks"] * 16 : (buffer["offset_blocks"] + buffer["size_blocks"]) * 16] = 0
        for index in np.ndindex(*buffer["shape"]):
            values[place(buffer, *index)] = x[index]
    execute(Program(EDGE.digest, tuple(cores), compiled.pieces[0].container.memory), EDGE, ddr)
    for buffer, expected in zip(outputs, InferenceSession(file).run(None, {"x": x}), strict=True):
        host = np.zeros([buffer["shape"][axis] for axis in buffer["order"]], np.float32)
        for index in np.ndindex(*buffer["shape"]):
            host[tuple(index[axis] for axis in buffer["order"])] = values[place(buffer, *index)]
        np.testing.assert_array_equal(host.reshape(buffer["onnx_shape"]), expected)


def place(b: dict[str, Any], n: int, c: int, h: int, w: int) -> int:
    """The float16 of a value, by the README."""
    lane, (_, _, height, width) = b["lanes"][c], b["shape"]
    if b["pixel_lanes"] == 4:
        pitch = (width + 3) // 4 * 4
        return int(b["offset_blocks"] * 16 + ((n * height + h) * pitch + w) * 4 + lane)
    block = b["offset_blocks"] + ((n * b["planes"] + lane // 16) * height + h) * width + w
    return int(block * 16 + lane % 16)


def test_its_readme_has_the_hash_of_every_part(whole: Path) -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| \d+ \| `([0-9a-f]{64})` \|$", (whole / "README.md").read_text(), re.MULTILINE))
    assert rows == {name: hashlib.sha256((whole / name).read_bytes()).hexdigest() for name in DATA_PARTS if name != "README.md"}
    assert "{{" not in (whole / "README.md").read_text()


def test_the_same_model_gives_the_same_bundle(file: Path, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_bundle(read_compiled(file), tmp_path / "empty", "file")
    for name in (MANIFEST, *DATA_PARTS):
        assert (tmp_path / "empty" / name).read_bytes() == (whole / name).read_bytes()


# the controller ----------------------------------------------------------------------------------------------------------


def main_of(bundle: Path) -> str:
    (block,) = blocks_of(bundle / "README.md", "c")
    return block


def blocks_of(page: Path, language: str) -> list[str]:
    return [block.text for block in blocks(page, language)]


def table_of(folder: Path) -> ControllerTable:
    return ControllerTable.model_validate_json((folder / "controller.json").read_bytes())


def chosen_by_python(table: ControllerTable) -> list[str]:
    """What the README's `main.c` does."""
    rule, names, now = ThresholdRule(table.ladder, table.t_min, table.t_max, table.slice_cycles), [], 0
    state = rule.start()
    for at in (*range(len(table.grid)), *reversed(range(len(table.grid)))):
        row = table.variants[state.variant]
        seen = Observation(state.variant, now, now + row.cycles[at], row.compute_cycles[at], row.load_store_cycles[at], row.ddr_bytes)
        now = seen.end
        state = rule.step(state, seen)
        names.append(table.variants[state.variant].name)
    return names


@pytest.mark.parametrize("more", [(), SANITIZER], ids=["plain", "sanitized"])
def test_the_main_of_its_readme_chooses_as_python(bundle: Path, more: tuple[str, ...]) -> None:
    main = main_of(bundle)
    assert main.count("\n") <= 20
    done = subprocess.run([compiled_program(bundle, main, *more)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    chosen = done.stdout.split()
    assert chosen == chosen_by_python(table_of(bundle))
    assert [name for name, _ in itertools.groupby(chosen)] == ["none", "severe", "none"]


def test_the_command_of_its_readme_compiles(bundle: Path) -> None:
    main_of(bundle)
    compiled_program(bundle, main_of(bundle))  # skips without a compiler
    (bundle / "main").unlink()
    (command,) = blocks_of(bundle / "README.md", "sh")
    subprocess.run(command.split(), cwd=bundle, check=True)
    assert (bundle / "main").is_file()


def test_table_of_the_file_is_that_of_simulation(file: Path, whole: Path) -> None:
    compiled = read_compiled(file)
    assert compiled.controller == table_of(whole)
    table = table_of(whole)
    measured, read = measure_response(prepared_variants(compiled), table.grid), Response.of(table.grid, table.variants)
    assert (measured.variants, measured.grid) == (read.variants, read.grid)
    for name in ("cycles", "balance", "pace"):
        np.testing.assert_array_equal(getattr(measured, name), getattr(read, name))
    for k, share in enumerate(table.grid):
        for level in compiled.levels:
            if share == compiled.level(level).share_units:
                assert [row.cycles[k] for row in table.variants] == [compiled.cycles(row.name)[level] for row in table.variants]


def test_the_estimator_of_its_readme(whole: Path) -> None:
    """Steps 1 to 4 with the JSON table, against the rule without its account of losses; programs this small differ by less than counts."""
    table = table_of(whole)
    one, two = (np.array(row.cycles) for row in table.variants)
    further = [tuple((mine + 10 * (mine - other)).tolist()) for mine, other in ((one, two), (two, one))]
    rows = tuple(row.model_copy(update={"cycles": cycles}) for row, cycles in zip(table.variants, further, strict=True))
    table = table.model_copy(update={"variants": rows})
    rule = EstimatorRule(Response.of(table.grid, table.variants), loss_budget=1e9)
    slowness = [SHARE_UNIT / share for share in table.grid]
    state, rng, ran = rule.start(), np.random.default_rng(3), []
    for _ in range(300):
        row, at = table.variants[state.variant], int(rng.integers(len(table.grid)))
        moving = row.load_store_cycles[at] + int(rng.integers(-20, 20))
        pace = moving / row.ddr_bytes
        paces = np.maximum.accumulate([value / row.ddr_bytes for value in row.load_store_cycles])
        now = np.interp(pace, paces, slowness)
        cycles = [float(np.interp(now, slowness, other.cycles)) for other in table.variants]
        best = int(np.argmin(cycles))
        expected = best if cycles[best] < 0.995 * cycles[state.variant] else state.variant
        state = rule.step(state, Observation(state.variant, 0, row.cycles[at], row.compute_cycles[at], moving, row.ddr_bytes))
        assert state.variant == expected
        ran.append(expected)
    assert len(set(ran)) == 2


# levels and variants -----------------------------------------------------------------------------------------------------


LIGHT, HEAVY = [load(10), vector(5)], [load(4), vector(20)]


def compiled_for(levels: dict[str, Any], rows: dict[str, Any]) -> Compiled:
    """Programs for some of a machine's levels."""
    machine = Machine.model_validate(TINY.model_dump() | {"contention": levels})  # its digest is not that of tiny
    programs = {level: small_program(machine, code) for level, code in rows.items()}
    first: dict[str, str] = {}
    made_for = {level: first.setdefault(p.digest, level) for level, p in programs.items()}
    needs = {level: programs[level].needs for level in first.values()}
    table = controller_table({level: (prepare(programs[level], machine),) for level in first.values()}, made_for, machine, needs)
    variants = tuple(Variant(level, p.streams, "", dict.fromkeys(rows, 1)) for level, p in programs.items())
    return Compiled.of(decode(encode(Container("0" * 32, machine, memory_map(), variants, bytes(64 * 32), (), table))))


def test_levels_are_in_order_of_their_costs(tmp_path: Path) -> None:
    """Whatever order the machine has them in; and the ladder is by load, not by the order of the variants."""
    compiled = compiled_for({"heavy": 0.25, "free": 1.0, "half": 0.5}, {"heavy": HEAVY, "free": LIGHT, "half": HEAVY})
    table = compiled.controller
    assert table is not None
    assert [(row.name, row.variant) for row in table.levels] == [("free", 1), ("half", 0), ("heavy", 0)]
    assert [row.name for row in table.variants] == ["heavy", "free"]
    assert table.ladder == (1, 0)
    write_bundle(compiled, tmp_path / "bundle", "it")
    assert containers(read_bundle(tmp_path / "bundle")) == containers(compiled)
    done = subprocess.run([compiled_program(tmp_path / "bundle", main_of(tmp_path / "bundle"))], capture_output=True, text=True, check=True)
    assert [name for name, _ in itertools.groupby(done.stdout.split())] == ["free", "heavy", "free"]


def test_level_lighter_in_one_axis_has_its_cost(tmp_path: Path) -> None:
    """All of the bandwidth, late: behind half of it in time, and behind the same share that answers at once."""
    levels = {"late": {"share": 1.0, "latency_cycles": 500}, "half": 0.5, "free": 1.0}
    compiled = compiled_for(levels, {"late": HEAVY, "half": HEAVY, "free": LIGHT})
    table = compiled.controller
    assert table is not None
    assert [(row.name, row.share_units, row.latency_cycles) for row in table.levels] == [
        ("free", 65536, 0), ("half", 32768, 0), ("late", 65536, 500),
    ]  # fmt: skip
    write_bundle(compiled, tmp_path / "bundle", "it")
    assert containers(read_bundle(tmp_path / "bundle")) == containers(compiled)
    changed(tmp_path / "bundle", "controller.json", lambda v: v["levels"][2].update(latency_cycles=1))
    assert mentions(refusal(tmp_path / "bundle"), "controller.json", "['free', 'half', 'late']")


def test_a_level_without_a_variant_is_never_chosen(tmp_path: Path) -> None:
    compiled = compiled_for({"free": 1.0, "half": 0.5, "heavy": 0.25}, {"free": LIGHT, "heavy": HEAVY})
    write_bundle(compiled, tmp_path / "bundle", "it")
    assert containers(read_bundle(tmp_path / "bundle")) == containers(compiled)
    rows = json.loads((tmp_path / "bundle/controller.json").read_text())["levels"]
    assert [(row["name"], row["variant"]) for row in rows] == [("free", 0), ("half", None), ("heavy", 1)]
    assert "| half | 0.5 | 0 | none: never chosen |" in (tmp_path / "bundle/README.md").read_text()
    main = (
        '#include <stdio.h>\n#include "table.h"\n\nint main(void)\n{\n'
        "    for (uint32_t k = 0u; k < TILEFARM_LEVELS; k++) {\n"
        '        printf("%s %d\\n", tilefarm_level[k], tilefarm_level_variant[k] == TILEFARM_NONE ? -1 : (int)tilefarm_level_variant[k]);\n'
        "    }\n    return 0;\n}\n"
    )
    done = subprocess.run([compiled_program(tmp_path / "bundle", main)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["free 0", "half -1", "heavy 1"]
    done = subprocess.run([compiled_program(tmp_path / "bundle", main_of(tmp_path / "bundle"))], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"free", "heavy"}


def test_one_variant_for_all_levels(tmp_path: Path) -> None:
    compiled = compiled_for({"free": 1.0, "half": 0.5, "heavy": 0.25}, {"free": LIGHT, "half": LIGHT, "heavy": LIGHT})
    table = compiled.controller
    assert table is not None
    assert (table.ladder, table.t_min, table.t_max) == ((0,), (), ())
    write_bundle(compiled, tmp_path / "bundle", "it")
    assert containers(read_bundle(tmp_path / "bundle")) == containers(compiled)
    done = subprocess.run([compiled_program(tmp_path / "bundle", main_of(tmp_path / "bundle"))], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"free"}


def test_a_variant_that_moves_nothing(tmp_path: Path) -> None:
    """Rho is infinite; the table is what was counted."""
    compiled = compiled_for({"free": 1.0, "heavy": 0.25}, {"free": LIGHT, "heavy": [vector(30)]})
    table = compiled.controller
    assert table is not None
    assert set(table.variants[1].load_store_cycles) == {0}
    write_bundle(compiled, tmp_path / "bundle", "it")
    assert containers(read_bundle(tmp_path / "bundle")) == containers(compiled)


def test_some_levels_of_a_model(tmp_path: Path) -> None:
    """As the compiler makes it."""
    onnx.save(small_model("conv_chain"), tmp_path / "model.onnx")
    opened = lower_model(ModelSpec(tmp_path / "model.onnx", EDGE))
    container = build_variants(opened.packed[0], {"severe": default_plans(opened)})
    assert container.controller is not None
    assert [(row.name, row.variant) for row in container.controller.levels] == [("none", None), ("slight", None), ("severe", 0)]
    assert decode(encode(container)).controller == container.controller


# what is refused -----------------------------------------------------------------------------------------------------------


def refusal(bundle: Path) -> str:
    with pytest.raises(BadInputError) as caught:
        read_bundle(bundle)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def seal(bundle: Path) -> None:
    """A manifest of what is there."""
    names = [str(p.relative_to(bundle)) for p in sorted(bundle.rglob("*")) if p.is_file() and p.name != MANIFEST]
    manifest = Manifest.of({name: (bundle / name).read_bytes() for name in names})
    (bundle / MANIFEST).write_bytes(pretty_json(manifest.model_dump(mode="json")))


@pytest.mark.parametrize("part", DATA_PARTS)
def test_part_of_another_manifest_is_named(bundle: Path, part: str) -> None:
    content = (bundle / part).read_bytes()
    for at in (0, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[at] ^= 1
        (bundle / part).write_bytes(damaged)
        assert mentions(refusal(bundle), bundle / part, "SHA-256", "manifest.json")
    (bundle / part).write_bytes(content[:-1])
    assert refusal(bundle) == f"{bundle / part}: {len(content) - 1} bytes, manifest.json has {len(content)}"
    (bundle / part).unlink()
    assert mentions(refusal(bundle), bundle / part, "No such file or directory", "manifest.json")
    (bundle / part).mkdir()
    assert refusal(bundle).startswith(f"{bundle / part}: ")


@pytest.mark.parametrize("part", DATA_PARTS)
def test_part_missing_in_the_manifest_is_named(bundle: Path, part: str) -> None:
    (bundle / part).unlink()
    seal(bundle)
    assert part in refusal(bundle)


def changed(bundle: Path, part: str, change: Callable[[Any], Any]) -> None:
    """A JSON part changed, and sealed."""
    value = json.loads((bundle / part).read_bytes())
    change(value)
    (bundle / part).write_bytes(pretty_json(value))
    seal(bundle)


def constants(memory: dict[str, Any]) -> list[dict[str, Any]]:
    return [buffer for buffer in memory["pieces"][0]["buffers"] if buffer["kind"] == "constant"]


@pytest.mark.parametrize(
    ("part", "change", "named"),
    [
        ("controller.json", lambda v: v.update(t_min=[1]), "table.h: is not what the others give"),
        ("controller.json", lambda v: v["variants"][0]["cycles"].pop(), "controller.json: .*25 values in every column"),
        ("controller.json", lambda v: v["levels"][0].update(share_units=9), "controller.json: controller has variants for"),
        ("controller.json", lambda v: v["levels"][1].update(variant=1), "controller.json: controller: level 'slight' has the variant of"),
        ("controller.json", lambda v: v.update(more=1), "controller.json: more: no such key"),
        ("memory.json", lambda v: v.update(model="0" * 32), "table.h: is not what the others give"),
        ("memory.json", lambda v: v.update(isa="0" * 32), "memory.json: instruction set 0{32}"),
        ("memory.json", lambda v: v.update(block_bytes=64), "memory.json: is not what the others give"),
        ("memory.json", lambda v: v["machine"].update(cores=2), "memory.json: piece 'Partition0': .*1 streams, edge has 2 cores"),
        ("memory.json", lambda v: v["pieces"][0]["streams"][0].update(instructions=[3]), "none.stream.bin: .* has 3 records of 128 for it"),
        ("memory.json", lambda v: v["pieces"][0]["variants"][2].update(stream=2), "memory.json: level 'severe' has stream 2, there are 2"),
        ("memory.json", lambda v: v["pieces"][0]["variants"][2].update(stream=0), "memory.json: is not what the others give"),
        ("memory.json", lambda v: v["pieces"][0].update(weights="../x"), "x: memory.json names it, and there is no such part"),
        (
            "memory.json",
            lambda v: constants(v)[-1].update(size_blocks=99999),
            "weights.bin: 32800 bytes, the memory map of memory.json has",
        ),
        ("memory.json", lambda v: constants(v)[0].update(odd=1), "memory.json: pieces.0.buffers.0.odd"),
        ("memory.json", lambda v: v["pieces"][0]["buffers"][-1].update(kind="odd"), "memory.json: pieces.0.buffers"),
        ("memory.json", lambda v: v.update(pieces=[]), "memory.json: pieces"),
        ("memory.json", lambda v: v["pieces"].append(v["pieces"][0]), "memory.json: is not what the others give"),
    ],
)
def test_mismatched_parts_are_named_though_sealed(bundle: Path, part: str, change: Callable[[Any], Any], named: str) -> None:
    changed(bundle, part, change)
    assert re.search(named, refusal(bundle)), refusal(bundle)


def test_parts_of_another_bundle(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_bundle(compiled_for({"free": 1.0, "heavy": 0.25}, {"free": LIGHT, "heavy": HEAVY}), other, "it")
    for part in ("table.h", "controller.json", "memory.json"):
        mine = (bundle / part).read_bytes()
        (bundle / part).write_bytes((other / part).read_bytes())
        assert refusal(bundle).startswith(f"{bundle / part}: ")
        seal(bundle)
        assert refusal(bundle)
        (bundle / part).write_bytes(mine)
        seal(bundle)
        read_bundle(bundle)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"", "manifest.json: "),
        (b"[]", "manifest.json: "),
        (b'{"parts": []}', "manifest.json: has no part memory.json"),
        (b'{"version": 2, "parts": []}', "manifest.json: version"),
        (b'{"parts": [{"path": "../x", "size_bytes": 0, "sha256": "' + b"0" * 64 + b'"}]}', "manifest.json: parts.0.path"),
        (b'{"parts": [{"path": "/x", "size_bytes": 0, "sha256": "' + b"0" * 64 + b'"}]}', "manifest.json: parts.0.path"),
        (b'{"parts": [{"path": "..", "size_bytes": 0, "sha256": "' + b"0" * 64 + b'"}]}', "manifest.json: parts.0.path"),
        (b"\xff\xfe", "manifest.json: "),
    ],
)
def test_a_manifest_that_is_none(bundle: Path, text: bytes, named: str) -> None:
    (bundle / MANIFEST).write_bytes(text)
    assert named in refusal(bundle)
    (bundle / MANIFEST).unlink()
    assert mentions(refusal(bundle), bundle, "manifest.json", "`tilefarm export --bundle`")


def test_a_part_twice_and_one_too_many(bundle: Path) -> None:
    manifest = json.loads((bundle / MANIFEST).read_bytes())
    manifest["parts"].append(manifest["parts"][0])
    (bundle / MANIFEST).write_bytes(pretty_json(manifest))
    assert refusal(bundle).endswith("lists memory.json twice")
    (bundle / "more.bin").write_bytes(b"")
    seal(bundle)
    assert refusal(bundle).endswith("manifest.json: lists more.bin, which memory.json does not name")


def test_a_record_that_is_illegal_is_refused(bundle: Path) -> None:
    path = bundle / "piece0/none.stream.bin"
    content = bytearray(path.read_bytes())
    content[0] = 99  # no such opcode
    path.write_bytes(content)
    seal(bundle)
    assert re.search(r"memory.json: piece 'Partition0': variant 'none': core 0 instruction 0: .*99", refusal(bundle))


def test_a_model_without_a_table(file: Path, tmp_path: Path) -> None:
    (piece,) = read_compiled(file).pieces
    bare = Compiled.of(replace(piece.container, controller=None))
    with pytest.raises(BadInputError, match=r"^bare\.onnx: .*table"):
        write_bundle(bare, tmp_path / "bundle", "bare.onnx")
    assert not (tmp_path / "bundle").exists()
