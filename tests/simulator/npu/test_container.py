"""The container: what comes back is what went in, and anything else is refused with one line."""

import hashlib
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.npu import container_file as box
from simulator.npu import isa
from simulator.npu.container import Container, ContainerError, OperatorEntry, SegmentEntry, Variant, program
from simulator.npu.container_file import decode, encode
from simulator.npu.controller_table import ControllerTable, LevelRow, VariantRow
from simulator.npu.errors import BadInputError
from simulator.npu.isa import WORDS, Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine, Memory
from simulator.npu.program import DdrBuffer, MemoryMap
from tests.messages import naming

TINY = load_machine("tiny")
LEVELS = ("none", "slight", "severe")


def copy(source: Memory, destination: Memory, engine: Engine, s0: int, d: int, length: int) -> list[int]:
    row = [0] * WORDS
    row[: isa.P] = [Op.COPY, engine, DataType.float16, 0, source, destination, d, s0, -1, -1]
    row[isa.C_LENGTH], row[isa.C_COUNT], row[isa.C_COUNT2] = length, 1, 1
    return row


def streams(length: int) -> tuple[np.ndarray, ...]:
    """Core 0 brings `length` input blocks to UB and stores them; core 1 does nothing."""
    flag = [0] * WORDS
    flag[isa.OP], flag[isa.ENGINE] = Op.SET, Engine.MTE2
    flag[isa.FLAG_CORE], flag[isa.FLAG_ENGINE] = 0, Engine.MTE3
    wait = list(flag)
    wait[isa.OP], wait[isa.ENGINE], wait[isa.FLAG_ENGINE] = Op.WAIT, Engine.MTE3, Engine.MTE2
    rows = [
        copy(Memory.DDR, Memory.UB, Engine.MTE2, 2, 0, length),
        flag,
        wait,
        copy(Memory.UB, Memory.DDR, Engine.MTE3, 0, 2 + length, length),
    ]
    return np.array(rows, np.int32), np.zeros((0, WORDS), np.int32)


TABLE = ControllerTable(
    levels=tuple(
        LevelRow(name=n, share_units=s, latency_cycles=0, variant=v)
        for n, s, v in (("none", 65536, 0), ("severe", 16384, 0), ("slight", 32768, 1))
    ),
    variants=(
        VariantRow(
            name="none",
            l1_bytes=0,
            shared_bytes=0,
            cores=1,
            ddr_bytes=256,
            cycles=(20, 50),
            compute_cycles=(8, 9),
            load_store_cycles=(12, 40),
        ),
        VariantRow(
            name="slight",
            l1_bytes=0,
            shared_bytes=0,
            cores=1,
            ddr_bytes=256,
            cycles=(30, 40),
            compute_cycles=(20, 20),
            load_store_cycles=(10, 20),
        ),
    ),
    grid=(65536, 16384),
    ladder=(0, 1),
    t_min=(30000,),
    t_max=(120000,),
    slice_cycles=7,
    granted=(),
)


def example() -> Container:
    shape = (1, 16, 2, 2)
    port = {"shape": shape, "onnx_shape": shape, "lanes": tuple(range(16)), "pixel_lanes": 16, "planes": 1}
    memory = MemoryMap(
        DataType.float16,
        (
            DdrBuffer("weights", "constant", 0, 2),
            DdrBuffer("x", "input", 2, 4, **port),
            DdrBuffer("y", "output", 6, 4, **port),
        ),
        10,
    )
    cycles = {"none": 20, "slight": 30, "severe": 50}
    other = streams(4)
    other[0][0, isa.TAG] = 7
    return Container(
        "ab" * 16,
        TINY,
        memory,
        (
            Variant("none", streams(4), "cd" * 16, cycles, (SegmentEntry(1, 2), SegmentEntry(1, 1))),
            Variant("slight", other, "ef" * 16, cycles, (SegmentEntry(2, 1),)),
            Variant("severe", streams(4), "cd" * 16, cycles),
        ),
        bytes(range(64)),
        (OperatorEntry("conv/\u00fc", 1000, 64), OperatorEntry("relu")),
        TABLE,
    )


DATA = encode(example())


def header_of(data: bytes) -> dict:
    size = int.from_bytes(data[24:32], "little")
    return json.loads(data[64 : 64 + size])


def sealed(header: dict, data: bytes = DATA) -> bytes:
    """`data` with another header: offsets moved by the change of its length, all digests made right again."""
    start = 64 + int.from_bytes(data[24:32], "little")
    start += -start % 64
    sections = (header["constants"], *header["streams"])
    offsets = [section["offset"] for section in sections]
    for section in sections:
        body = data[section["offset"] : section["offset"] + section["length"]]
        section["sha256"] = hashlib.sha256(body).hexdigest()
    text = b""
    for _ in range(4):  # the digits of the offsets are part of the length
        shift = 64 + len(text) + -len(text) % 64 - start
        for section, offset in zip(sections, offsets, strict=True):
            section["offset"] = offset + shift
        text = json.dumps(header, separators=(",", ":")).encode()
    body = bytes(-len(text) % 64) + data[start:]
    front = data[:16] + (64 + len(text) + len(body)).to_bytes(8, "little") + len(text).to_bytes(8, "little")
    return front + hashlib.sha256(front + text).digest() + text + body


def test_round_trip():
    before, after = example(), decode(DATA)
    assert encode(after) == DATA
    assert after.machine == before.machine
    assert list(after.machine.contention) == list(before.machine.contention)
    assert after.memory == before.memory
    assert bytes(after.constants) == before.constants
    assert after.levels == LEVELS
    assert after.operators == before.operators
    assert after.controller == before.controller == TABLE
    assert [variant.segments for variant in after.variants] == [variant.segments for variant in before.variants]
    for level in LEVELS:
        one, two = before.variant(level), after.variant(level)
        assert (one.level, one.plan_digest, one.cycles) == (two.level, two.plan_digest, two.cycles)
        assert program(before, level).digest == program(after, level).digest
        for a, b in zip(one.streams, two.streams, strict=True):
            np.testing.assert_array_equal(a, b)


def test_equal_champions_share_one_stream():
    container = decode(DATA)
    assert [container.same_as(level) for level in LEVELS] == [None, None, "none"]
    assert container.variant("none").streams[0] is container.variant("severe").streams[0]
    assert len(header_of(DATA)["streams"]) == 2


def test_sections_are_aligned_and_constants_are_there_once():
    header = header_of(DATA)
    assert all(section["offset"] % 64 == 0 for section in (header["constants"], *header["streams"]))
    assert DATA.count(bytes(range(64))) == 1


def test_equal_rows_on_other_cores_are_two_programs():
    a = np.concatenate(streams(4))
    variants = example().variants
    two = replace(variants[1], streams=(np.zeros((0, WORDS), np.int32), a))
    with pytest.raises(ContainerError, match="slight"):  # its flags name core 0: kept apart, hence looked at, hence refused
        encode(replace(example(), variants=(variants[0], two, variants[2])))


def test_unknown_level_names_those_that_exist():
    with pytest.raises(BadInputError, match=r"'heavy'.*none, slight, severe"):
        decode(DATA).variant("heavy")


def test_every_single_byte_matters():
    for at in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(ContainerError):
            decode(bytes(damaged))


def test_every_cut_is_refused():
    for length in range(len(DATA)):
        with pytest.raises(ContainerError):
            decode(DATA[:length])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_arbitrary_damage_raises_nothing_but_container_error(draw):
    data = bytearray(DATA)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data)))
        kind = draw.draw(st.sampled_from(["overwrite", "insert", "cut"]))
        some = draw.draw(st.binary(min_size=1, max_size=40))
        if kind == "overwrite":
            data[at : at + len(some)] = some
        elif kind == "insert":
            data[at:at] = some
        else:
            del data[at : at + len(some)]
    if bytes(data) != DATA:
        with pytest.raises(ContainerError):
            decode(bytes(data))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.binary(max_size=300))
def test_bytes_of_anything_are_no_container(data):
    with pytest.raises(ContainerError):
        decode(data)


def leaves(value, path=()):
    """Paths of everything in a JSON value; of a list its first and last two."""
    yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else sorted({*range(len(value))[:2], *range(len(value))[-2:]})
        for key in keys:
            yield from leaves(value[key], (*path, key))


ODD = [None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 0.5, 1e308, "", "none", "x" * 100, [], {}, [1], {"a": 1}, [[[]]]]


@pytest.mark.parametrize("part", list(header_of(DATA)))
def test_resealed_false_header_is_refused_or_harmless(part):
    paths = list(leaves(header_of(DATA)[part], (part,)))
    sealed_ones = 0
    for path, odd in itertools.islice(itertools.product(paths, ODD), 0, None, 3):  # every odd value, at other places
        header = header_of(DATA)
        target = header
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = odd
        if part == "machine":
            header["machine_digest"] = machine_digest(header)
        try:
            data = sealed(header)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue  # the damage is to what `sealed` itself needs
        sealed_ones += 1
        container = decode_or_one_line(data)
        assert container is None or encode(container) == data, (path, odd)
    assert sealed_ones > len(ODD) / 9


def decode_or_one_line(data: bytes) -> Container | None:
    """What `decode` gives, or None where it refuses in one line."""
    message = ""
    try:
        return decode(data)
    except ContainerError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    return None


def machine_digest(header: dict) -> str:
    try:
        return type(TINY).model_validate(header["machine"]).digest
    except ValueError:
        return header["machine_digest"]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 3), st.integers(0, WORDS - 1), st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 3, 5, 7, 16, 63, 255, 2**20, 2**31 - 1]))
def test_resealed_changed_record_is_refused_or_legal(row, word, value):
    header = header_of(DATA)
    data = bytearray(DATA)
    at = header["streams"][0]["offset"] + 4 * (row * WORDS + word)
    data[at : at + 4] = value.to_bytes(4, "little", signed=True)
    container = decode_or_one_line(sealed(header, bytes(data)))
    if container is None:
        return
    program(container, "none").verify(container.machine)
    assert container.variant("none").streams[0][row, word] == value


def test_another_instruction_set_is_refused():
    header = header_of(DATA)
    header["isa"] = "0" * 32
    with pytest.raises(ContainerError, match=r"instruction set 0{32}, this program has"):
        decode(sealed(header))


def test_another_machine_is_refused():
    header = header_of(DATA)
    header["machine"]["queue_depth"] = 17
    with pytest.raises(ContainerError, match="machine digest"):
        decode(sealed(header))


def test_another_version_is_refused():
    again = r"format version 3\.0, this program reads 4\.0; make a new one: tilefarm compile MODEL --machine NAME --out FILE"
    with pytest.raises(ContainerError, match=again):
        decode(DATA[:8] + (3).to_bytes(4, "little") + DATA[12:])


def test_bytes_behind_the_end_are_refused():
    with pytest.raises(ContainerError, match="bytes behind the end"):
        decode(DATA + b"\0")


def _renamed(header: dict, level: str, name: str) -> None:
    """A level of the variants that the machine does not have."""
    for variant in header["variants"]:
        variant["level"] = name if variant["level"] == level else variant["level"]
        variant["cycles"] = {name if at == level else at: cycles for at, cycles in variant["cycles"].items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["constants"].update(offset=h["constants"]["offset"] + 64), "constants at byte"),
        (lambda h: h["streams"][1].update(offset=h["streams"][0]["offset"]), r"streams\[1\] at byte"),
        (lambda h: h["streams"][0].update(instructions=[4, 1]), "for 5 records"),
        (lambda h: h["streams"][0].update(instructions=[4]), "1 streams, tiny has 2 cores"),
        (lambda h: h["variants"][0].update(section=1), "names stream section 1"),
        (lambda h: h["variants"][1].update(section=0), "2 stream sections, variants use 1"),
        (lambda h: h["variants"][1].update(level="none"), "given twice"),
        (lambda h: h["variants"][1].update(cycles={"none": 1}), "variant 'slight' has cycles for"),
        (lambda h: _renamed(h, "slight", "gone"), "level 'gone': tiny has none, slight, severe"),
        (lambda h: h["buffers"][0].update(size_blocks=1), "64 bytes of constants, the memory map has 32"),
        (lambda h: h["buffers"][1].update(offset_blocks=1), r"lies between constants|overlaps"),
        (lambda h: h["buffers"][1].update(lanes=[0] * 16), "lanes are not 16 different ones"),
        (lambda h: h["buffers"][1].update(lanes=[*range(15), 16]), "lanes are not 16 different ones below 16"),
        (lambda h: h["buffers"][1].update(size_blocks=3), "3 blocks, its layout needs 4"),
        (lambda h: h["buffers"][1].update(order=[0, 1, 1, 3]), "not a permutation"),
        (lambda h: h["buffers"][1].update(pixel_lanes=8), "8 lanes in a pixel"),
        (lambda h: h["buffers"][2].update(name="x"), "an input or output is given twice: x, x"),
        (lambda h: h["buffers"][2].update(onnx_shape=[1, 16, 2]), "is not the model's"),
        (lambda h: h["operators"].pop(), "segments of variant 'none' have 2 operators, the model has 1"),
        (lambda h: h["variants"][1]["segments"].append({"operators": 1, "blocks": 1}), "segments of variant 'slight' have 3 operators"),
        (lambda h: h["variants"][1]["segments"][0].update(blocks=0), "segments.0.blocks"),
        (lambda h: h["operators"][0].update(name="x" * 257), "operators.0.name"),
        (lambda h: h["operators"][0].update(macs=-1), "operators.0.macs"),
        (lambda h: h.update(more=1), "more"),
        (lambda h: h["controller"]["grid"].reverse(), "accepted: shares that descend"),
        (lambda h: h["controller"].update(t_min=[0]), "threshold 0; accepted: 1 to 4294967295, in 1/65536"),
        (lambda h: h["controller"].update(t_max=[]), "1 t_min and 0 t_max"),
        (lambda h: h["controller"].update(ladder=[0, 2]), r"ladder \(0, 2\): there are 2 variants"),
        (lambda h: h["controller"].update(slice_cycles=-1), "time slice of -1"),
        (lambda h: h["controller"]["variants"][1]["cycles"].pop(), "variant 'slight': accepted: 2 values in every column"),
        (lambda h: h["controller"]["variants"].pop(), r"levels name variants \[0, 1\], there are 1"),
        (lambda h: h["controller"]["variants"][1].update(name="none"), "a variant is given twice: none, none"),
        (lambda h: h["controller"]["variants"][0].update(name="slight2"), "the name of a level that it was made for"),
        (lambda h: h["controller"]["levels"][1].update(variant=None), "controller has variants for"),
        (lambda h: h["controller"]["levels"][1].update(share_units=1), "or these otherwise"),
        (lambda h: h["controller"]["levels"][1].update(variant=1), "level 'severe' has the variant of 'slight', its stream is another"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    header = header_of(DATA)
    change(header)
    with pytest.raises(ContainerError, match=message):
        decode(sealed(header))


def test_a_header_in_another_spelling_is_refused():
    header = header_of(DATA)
    header["machine"]["cores"] = 2.0
    with pytest.raises(ContainerError, match="canonical"):
        decode(sealed(header))


def test_encode_refuses_what_decode_would_refuse():
    with pytest.raises(ContainerError, match="constants"):
        encode(replace(example(), constants=b"short"))
    with pytest.raises(ContainerError, match="model"):
        encode(replace(example(), model_digest="no digest"))


def test_compiler_output_gives_the_same_bytes():
    """Numpy integers as addresses, constants as an array with alignment behind the last one."""
    it = example()
    buffers = tuple(
        replace(b, offset_blocks=np.int64(b.offset_blocks), lanes=tuple(np.array(b.lanes, np.int32))) for b in it.memory.buffers
    )
    variants = tuple(replace(v, cycles={name: np.int64(n) for name, n in v.cycles.items()}) for v in it.variants)
    padded = np.concatenate([np.frombuffer(it.constants, np.uint8), np.zeros(32, np.uint8)])
    assert encode(replace(it, memory=replace(it.memory, buffers=buffers), variants=variants, constants=padded)) == DATA
    padded[-1] = 1
    with pytest.raises(ContainerError, match=naming("96 bytes of constants", 64)):
        encode(replace(it, constants=padded))


def test_a_fresh_process_needs_no_machine_file(monkeypatch):
    monkeypatch.setattr("simulator.npu.machine_file.configs_folder", lambda: pytest.fail("looked for machine files"))
    assert decode(DATA).machine.name == "tiny"


def test_view_of_larger_buffer_is_decoded_without_copy():
    held = bytearray(b"some" + DATA + b"more")
    container = decode(memoryview(held)[4:-4])
    assert bytes(container.constants) == bytes(range(64))
    assert box.encode(container) == DATA
