"""Files that nobody meant: whatever is in them, a reader takes them or refuses in one line."""

from __future__ import annotations

import copy
import functools
import random
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.build import default_plan
from compiler.frontend import lower
from compiler.ops.lower_graph import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.background_load import read_trace
from simulator.ddr import ContentionTrace
from simulator.npu import isa
from simulator.npu.asm import parse, print_program
from simulator.npu.container import Container, Variant
from simulator.npu.container_file import decode, encode
from simulator.npu.errors import TilefarmError
from simulator.npu.isa import WORDS, Op
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.machine_file import configs_folder, load_machine
from simulator.npu.parts import DataType, Memory
from simulator.sanitizer import sanitize_program
from simulator.session import InferenceSession
from simulator.timing import prepare, simulate
from tests.compiler.codegen.test_transformer import encoder
from tests.corner_models import corner_model
from tests.integers import with_integers
from tests.models import SMALL_MODELS, small_model
from tests.programs import program, random_program
from tests.simulator.npu.test_container import DATA

FUZZ = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
TINY = load_machine("tiny")
NUMBERS = st.integers(-3, 1 << 20) | st.sampled_from([-(1 << 70), (1 << 50) - 1, 1 << 50, 1 << 63, 1 << 64, 1 << 2000])
SHARES = st.floats() | st.sampled_from([0.0, -0.0, -0.5, 1.0, 1 / SHARE_UNIT, 1 + 1e-9, 5e-324])


def refusal(act: Callable[[], object]) -> str:
    """The line that refuses, or nothing where the input is taken.  Anything but a `TilefarmError` goes through and fails the test."""
    message = ""
    try:
        act()
    except TilefarmError as error:
        message = str(error)
        assert message
    # what a terminal would break a line at
    assert len(message.splitlines()) <= 1, message
    return message


# contention traces ---------------------------------------------------------------------------------------------------

ODD_CELLS = ["", "nan", "inf", "-1", "1e400", "1_0", " 0", "٣", "0x1", "x\ny", "9" * 5000]
CELL = NUMBERS.map(str) | SHARES.map(repr) | st.sampled_from(ODD_CELLS) | st.text(max_size=6)
ROWS = st.lists(st.lists(CELL, min_size=1, max_size=3) | st.tuples(st.integers(0, 9).map(str), SHARES.map(repr)).map(list), max_size=6)


def right_trace(trace: ContentionTrace) -> bool:
    """What a reader of the result relies on."""
    ascending = all(a < b for a, b in zip(trace.cycles, trace.cycles[1:], strict=False))
    return trace.cycles[0] == 0 and ascending and all(1 <= share <= SHARE_UNIT for share in trace.share_units)


@settings(FUZZ, max_examples=120)
@given(st.sampled_from(["cycle,share", "cycle,share", "cycle,share", "share,cycle", "", '"cycle","share"', "\ufeffcycle,share"]), ROWS,
       st.sampled_from(["\n", "\r\n", "\r", "\n\n"]))  # fmt: skip
def test_any_csv_is_a_trace_or_refused(tmp_path: Path, header: str, rows: list[list[str]], end: str) -> None:
    path = tmp_path / "load.csv"
    path.write_bytes((end.join([header, *(",".join(row) for row in rows)]) + end).encode(errors="surrogatepass"))
    refusal(lambda: right(read_trace(path)))


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("cell", ODD_CELLS, ids=lambda cell: repr(cell[:6]))
def test_an_odd_cell_among_right_ones(tmp_path: Path, cell: str, column: int, row: int) -> None:
    """Each in every place, which examples at random reach by chance."""
    rows = [["0", "1.0"], ["10", "0.5"], ["20", "0.25"]]
    rows[row][column] = cell
    path = tmp_path / "load.csv"
    path.write_text("\n".join(",".join(cells) for cells in [["cycle", "share"], *rows]), encoding="utf-8")
    refusal(lambda: right(read_trace(path)))


def right(trace: ContentionTrace) -> None:
    assert right_trace(trace)


@settings(FUZZ, max_examples=80)
@given(st.binary(max_size=60))
@example(b"")
@example(b"cycle,share\n0,1\0\n")
@example(b"\xff\xfec\0y\0c\0l\0e\0")
def test_any_bytes_are_no_trace(tmp_path: Path, data: bytes) -> None:
    for name in ("load.csv", "load.parquet"):
        path = tmp_path / name
        path.write_bytes(data)
        assert name in refusal(lambda path=path: read_trace(path))  # type: ignore[misc]


def right_parquet(folder: Path) -> bytes:
    path = folder / "right.parquet"
    pq.write_table(pa.table({"cycle": [0, 100, 200], "share": [1.0, 0.5, 0.25]}), path)
    return path.read_bytes()


COLUMN = (
    st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 9), max_size=5).map(lambda v: pa.array(v, pa.int64()))
    | st.lists(st.none() | SHARES, max_size=5).map(lambda v: pa.array(v, pa.float64()))
    | st.lists(st.none() | st.text(max_size=4), max_size=5).map(lambda v: pa.array(v, pa.string()))
    | st.lists(st.none() | st.booleans(), max_size=5).map(lambda v: pa.array(v, pa.bool_()))
    | st.lists(st.integers(0, (1 << 64) - 1), max_size=5).map(lambda v: pa.array(v, pa.uint64()))
    | st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=5).map(lambda v: pa.array(v, pa.list_(pa.int64())))
)


@settings(FUZZ, max_examples=80)
@given(COLUMN, COLUMN, st.sampled_from([("cycle", "share"), ("cycle", "share"), ("share", "cycle"), ("cycle", "cycle"), ("cycle", "x\ny")]))
def test_any_parquet_table_is_a_trace_or_refused(tmp_path: Path, a: pa.Array, b: pa.Array, names: tuple[str, str]) -> None:
    path = tmp_path / "load.parquet"
    n = min(len(a), len(b))
    pq.write_table(pa.table([a[:n], b[:n]], names=list(names)), path)
    refusal(lambda: right(read_trace(path)))


@settings(FUZZ, max_examples=100)
@given(st.integers(0, 1 << 20), st.integers(0, 255), st.sampled_from(["flip", "cut", "insert"]))
def test_damaged_parquet_file_is_a_trace_or_refused(tmp_path: Path, at: int, value: int, kind: str) -> None:
    data = bytearray(right_parquet(tmp_path))
    at %= len(data)
    if kind == "flip":
        data[at] ^= 1 << value % 8
    elif kind == "cut":
        del data[at : at + value]
    else:
        data[at:at] = bytes([value])
    path = tmp_path / "load.parquet"
    path.write_bytes(data)
    refusal(lambda: right(read_trace(path)))


# containers and programs ---------------------------------------------------------------------------------------------


def test_every_byte_of_a_container_matters() -> None:
    for at, bit in product(range(len(DATA)), range(8)):
        if at < 64 or bit == at % 8:  # every bit of the header, one of what is under a digest
            damaged = bytearray(DATA)
            damaged[at] ^= 1 << bit
            assert refusal(lambda damaged=damaged: decode(bytes(damaged)))  # type: ignore[misc]


def test_every_other_length_of_a_container_is_refused() -> None:
    for more in (1, 2, 7, 8, 63, 64, 65, 4096):
        assert refusal(lambda more=more: decode(DATA + bytes(more)))  # type: ignore[misc]
        assert refusal(lambda more=more: decode(bytes(more) + DATA))  # type: ignore[misc]
        assert refusal(lambda more=more: decode(DATA + DATA[-more:]))  # type: ignore[misc]


INTEGERS = with_integers(TINY)
RIGHT = [random_program(INTEGERS, seed, 20) for seed in range(7)]
WORD = st.integers(-(1 << 31), (1 << 31) - 1)
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, WORDS - 1), WORD), min_size=1, max_size=3)


@settings(FUZZ, max_examples=40)
@given(st.integers(0, len(RIGHT) - 1), CHANGES)
def test_damaged_records_end_or_are_refused(seed: int, changes: list[tuple[int, int, int]]) -> None:
    """Readers of a stream that was not verified first: none of them crashes, hangs or reads outside of its arrays."""
    codes = [code.copy() for code in RIGHT[seed % len(RIGHT)].streams]
    for row, word, value in changes:
        code = codes[row % len(codes)]
        if len(code):
            code[row // 2 % len(code), word] = value if row % 3 else value % 16
    damaged = program(INTEGERS, *map(list, codes))
    taken = not refusal(lambda: damaged.verify(INTEGERS))
    refusal(lambda: sanitize_program(damaged, INTEGERS))
    if taken:
        refusal(lambda: simulate(prepare(damaged, INTEGERS), INTEGERS, NO_CONTENTION))


# compiled programs whose records were changed and whose digests were made right again ---------------------------------

COMPILED = [
    ("residual_block", "tiny", "float16"), ("batch", "ascend310", "float32"), ("encoder", "tiny", "float16"),
    ("softmax_of_images", "tiny", "float32"), ("normalised", "ascend310", "float16"), ("shuffle_block", "ascend310", "float16"),
]  # fmt: skip
EXTREMES = [-(1 << 31), -1, 0, 1, 2, 3, 8, 16, 255, 256, 1 << 12, 1 << 16, 1 << 20, 1 << 24, (1 << 31) - 1]


@functools.cache
def compiled(name: str, machine: str, dtype: str) -> Container:
    """One variant, layer by layer; an encoder because it has products of two tensors."""
    model = encoder(1, 9, 2, 8) if name == "encoder" else small_model(name) if name in SMALL_MODELS else corner_model(name)
    target_graph, constants = pack_unit(lower(model), load_machine(machine), DataType[dtype])
    plan = default_plan(target_graph)
    assert not isinstance(plan, Infeasible)
    made = Compiler(target_graph).compile(plan)
    assert not isinstance(made, Infeasible)
    return Container(
        "0" * 32, target_graph.machine, target_graph.memory, (Variant("none", made.streams, "", {"none": 1}),), constants.tobytes()
    )


def mutated(container: Container, rng: random.Random) -> Container:
    """One to three changes: a word (to anything, an extreme, by a little, by a factor, to another record's), an opcode, or a record."""
    variant = container.variants[0]
    streams = [code.copy() for code in variant.streams]
    for _ in range(rng.randint(1, 3)):
        code = rng.choice([code for code in streams if len(code)])
        row, word, other = rng.randrange(len(code)), rng.randrange(WORDS), rng.randrange(len(code))
        was, kind = int(code[row, word]), rng.randrange(7)
        if kind == 0:
            code[row] = code[other]
        elif kind == 1:
            code[row, isa.OP] = rng.choice(list(isa.OPS))
        else:
            near, far = was + rng.randint(-2, 2), was * rng.choice([-1, 2, 4, 16])
            value = (near, far, rng.choice(EXTREMES), rng.randint(-(1 << 31), (1 << 31) - 1), int(code[other, word]))[kind - 2]
            code[row, word] = min(max(value, -(1 << 31)), (1 << 31) - 1)
    return replace(container, variants=(replace(variant, streams=tuple(streams)),))


def sealed_and_run(container: Container, feeds: dict[str, NDArray[np.float32]]) -> None:
    InferenceSession(encode(container)).run(None, feeds)


def execute_mutated(cases: int, seed: int) -> list[bool]:
    """Whether each was executed; what was not is refused in one line.  A warning of numpy is a failure as well."""
    rng, executed = random.Random(seed), []
    for _ in range(cases):
        container = mutated(compiled(*rng.choice(COMPILED)), rng)
        feeds = {port.name: np.ones(port.onnx_shape, np.float32) for port in container.memory.of_kind("input")}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            executed.append(not refusal(functools.partial(sealed_and_run, container, feeds)))
    return executed


def test_mutated_records_are_executed_or_refused() -> None:
    executed = execute_mutated(120, 0)
    assert 30 < sum(executed) < 100  # some of both


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_more_mutated_records_are_executed_or_refused(seed: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    execute_mutated(1000, seed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB: no case takes a GiB"


def test_coinciding_bursts_take_no_minutes() -> None:
    """Sixteen million of them, the most that a record may have: a loop of Python's takes ten seconds for each such record."""
    container = compiled("residual_block", "tiny", "float16")
    code = container.variants[0].streams[0].copy()
    loads = np.flatnonzero((code[:, isa.OP] == Op.COPY) & (code[:, isa.SRC] == Memory.DDR) & (code[:, isa.DST] == Memory.L1))[:4]
    strides = [isa.C_SSTRIDE, isa.C_DSTRIDE, isa.C_SSTRIDE2, isa.C_DSTRIDE2]
    code[loads[:, None], strides] = 0
    code[loads[:2], isa.C_LENGTH], code[loads[:2], isa.C_COUNT], code[loads[:2], isa.C_COUNT2] = 1, 1 << 24, 1
    code[loads[2:], isa.C_LENGTH], code[loads[2:], isa.C_COUNT], code[loads[2:], isa.C_COUNT2] = 1, 1 << 12, 1 << 12
    streams = (code, *container.variants[0].streams[1:])
    feeds = {port.name: np.ones(port.onnx_shape, np.float32) for port in container.memory.of_kind("input")}
    session = InferenceSession(encode(replace(container, variants=(replace(container.variants[0], streams=streams),))))
    session.run(None, feeds)  # compiles a kernel, where nobody has yet
    begin = time.process_time()
    session.run(None, feeds)
    assert time.process_time() - begin < 10  # four records


@pytest.mark.parametrize("name", ["edge", "ascend310", "nvdla-large"])
def test_a_program_for_another_machine_names_both(name: str) -> None:
    other = load_machine(name)
    p = random_program(TINY, 0, 10)
    message = refusal(lambda: p.verify(other))
    assert message
    assert "\n" not in message


# text of programs ----------------------------------------------------------------------------------------------------

LINES = "".join(print_program(code) for seed in range(6) for code in random_program(INTEGERS, seed, 30).streams).splitlines()
PIECES = [
    "", "=", "L1[", "]", "[-1]", "L9[0]", "word9=1", "word²=1", "word" + "9" * 5000 + "=1", "imm=0x", "imm=nan", "imm=1e999",
    "imm=0x1ffffffff", "@1", "@1.2", "@-40000.1", "@1.99999", "float16", "float64", "length=" + "9" * 5000, "engine=٣", "engine=²",
    "engine=-", "core=1e3", "-", ":", "0:", "12: 13:", "#", "\t", "\x00", "\x85", "\u2028", "WAIT", "MTE2", "VCONVERT", "FIXPIPE",
]  # fmt: skip
EDITS = st.lists(st.tuples(st.integers(0, 20), st.sampled_from(PIECES) | st.text(max_size=5), st.integers(0, 2)), min_size=1, max_size=3)


@settings(FUZZ, max_examples=100)
@given(st.integers(0, len(LINES) - 1), EDITS)
def test_damaged_text_is_a_stream_or_refused(at: int, changes: list[tuple[int, str, int]]) -> None:
    tokens = LINES[at].split()
    for where, piece, kind in changes:
        where %= len(tokens) + 1
        if kind == 0:
            tokens.insert(where, piece)
        elif kind == 1:
            tokens[where : where + 1] = [piece]
        elif where < len(tokens):
            tokens[where] = tokens[where][: len(tokens[where]) // 2] + piece + tokens[where][len(tokens[where]) // 2 :]
    refusal(lambda: stream(" ".join(tokens)))


def test_an_odd_value_of_every_parameter() -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for line in LINES:
        words = line.split()
        found |= {(words[1], word.partition("=")[0]): words for word in words if "=" in word}
    assert any(name == "imm" for _, name in found)
    for (_, name), words in found.items():
        for value in ("nan", "0x", "x"):
            text = " ".join(f"{name}={value}" if word.startswith(f"{name}=") else word for word in words)
            refusal(functools.partial(stream, text))


@settings(FUZZ, max_examples=80)
@given(st.text(max_size=60))
def test_any_text_is_a_stream_or_refused(text: str) -> None:
    refusal(lambda: stream(text))


def stream(text: str) -> None:
    code = parse(text)
    assert code.dtype == np.int32
    assert code.shape[1:] == (WORDS,)


# machines ------------------------------------------------------------------------------------------------------------

RAW: dict[str, Any] = yaml.safe_load((configs_folder() / "machines" / "tiny.yaml").read_text())
SYSTOLIC: dict[str, Any] = yaml.safe_load((configs_folder() / "machines" / "tpu-like.yaml").read_text())
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "none", "x\ny", "x" * 5000,
    [], {}, [1], {"a": 1}, {1: 2}, [[[]]], "2020-01-01", b"\xff", {32: float("nan")}, {"float16": 0},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def read_machine(path: Path) -> None:
    """What is taken is a machine: it has a digest, and the timing of a program on it comes to an end."""
    machine = load_machine(str(path))
    assert isinstance(machine, Machine)
    assert len(machine.digest) == 32


@pytest.mark.parametrize("raw", [RAW, SYSTOLIC], ids=["cube", "systolic"])
def test_any_machine_value_is_taken_or_refused(tmp_path: Path, raw: dict[str, Any]) -> None:
    rng = random.Random(0)
    cases = [(where, odd) for where in places(raw) for odd in ODD]
    for n, (where, odd) in enumerate(rng.sample(cases, min(len(cases), 90))):
        values = copy.deepcopy(raw)
        at: Any = values
        for key in where[:-1]:
            at = at[key]
        at[where[-1]] = odd
        path = tmp_path / f"m{n}.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")
        message = refusal(lambda path=path: read_machine(path))  # type: ignore[misc]
        assert not message or (path.name in message and len(message) < 3000)


SNIPPETS = [
    "&a ", "*a", "!!python/name:os.system ", "!!set ", "!!binary ", "- ", ": ", "\t", "{", "[", "? ", "---\n", "...", "%YAML 9.9\n", "<<: ",
    "\x00", "\ud800", "0o99", "1e999", ".nan", "2020-99-99", "!!int x", "!!int ''", "!!float x", "!!timestamp x", "1:99:99", "|", ">", "'",
    '"', "!!omap [1]", "!!bool x", "0b", "0x_",
]  # fmt: skip


@settings(FUZZ, max_examples=80)
@given(st.integers(0, 1 << 20), st.sampled_from(SNIPPETS) | st.text(max_size=4), st.integers(0, 6))
def test_damaged_machine_text_is_taken_or_refused(tmp_path_factory: pytest.TempPathFactory, at: int, piece: str, cut: int) -> None:
    text = "\n".join(line.partition("#")[0].rstrip() for line in (configs_folder() / "machines" / "tiny.yaml").read_text().splitlines())
    at %= len(text)
    path = tmp_path_factory.mktemp("m") / "m.yaml"
    path.write_bytes((text[:at] + piece + text[at + cut :]).encode(errors="surrogatepass"))
    refusal(lambda: read_machine(path))
