"""The sanitizer finds what is planted, and nothing in a right program."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.asm import parse
from simulator.npu.errors import ProgramError
from simulator.npu.isa import Op
from simulator.npu.machine_parts import Dma
from simulator.npu.parts import DataType, Engine, Memory
from simulator.npu.program import DdrBuffer, MemoryMap, Program
from simulator.sanitizer import sanitize_program
from tests.simulator.micro import DDR_BLOCKS, TINY, program

WEIGHTS = DdrBuffer("w", "constant", 0, 64)
X = DdrBuffer("x", "input", 64, 64)
Y = DdrBuffer("y", "output", 128, 32, (1, 32, 2, 8), (), tuple(range(32)), 16, 2)
SCRATCH = DdrBuffer("s", "scratch", 160, DDR_BLOCKS - 160)
BUFFERS = (WEIGHTS, X, Y, SCRATCH)

RIGHT = """
MTE2    COPY L1[0] DDR[64]  length=32 count=1 count2=1
MTE2    COPY L1[32] DDR[0]  length=64 count=1 count2=1
MTE2    SET  core=0 engine=MTE1 id=0
MTE1    WAIT core=0 engine=MTE2 id=0
MTE1    IM2COL L0A[0] L1[0] h=2 w=8 pitch=8 plane=16 kh=1 kw=1 sh=1 sw=1 dh=1 dw=1 ow=8 m=16 mpad=16 k=2 lanes=16
MTE1    COPY L0B[0] L1[32]  length=64 count=1 count2=1
MTE1    SET  core=0 engine=CUBE id=0
CUBE    WAIT core=0 engine=MTE1 id=0
CUBE    MMAD L0C[0] L0A[0] L0B[0] mpad=16 k=2 n1=2
CUBE    SET  core=0 engine=FIXPIPE id=0
FIXPIPE WAIT core=0 engine=CUBE id=0
FIXPIPE FIXPIPE UB[0] L0C[0] m=16 mpad=16 n1=2 dplane=16
FIXPIPE SET  core=0 engine=MTE3 id=0
MTE3    WAIT core=0 engine=FIXPIPE id=0
MTE3    COPY DDR[128] UB[0] length=32 count=1 count2=1
"""
LINES = RIGHT.strip().splitlines()


def checked(*texts: str, buffers: tuple[DdrBuffer, ...] = BUFFERS):
    return sanitize_program(program(*texts, buffers=buffers), TINY)


def test_a_right_program_passes():
    assert checked(RIGHT) == ()


@pytest.mark.parametrize("at", [2, 6, 9, 12])
def test_a_missing_flag_is_a_race(at):
    """Both sides left out: the consumer is no longer ordered after the producer."""
    lines = [line for i, line in enumerate(LINES) if i not in (at, at + 1)]
    findings = checked("\n".join(lines))
    races = [finding for finding in findings if finding.kind == "race"]
    # the last producer before the flag and the first consumer behind it (whose number fell by the two lines left out)
    assert any(f.counterpart == (0, at - 1) and f.instruction in (at, at + 1) for f in races)


def test_race_names_blocks_and_both_instructions():
    text = """
    MTE2 COPY L1[0] DDR[64] length=4 count=1 count2=1
    MTE1 COPY UB[0] L1[2] length=1 count=1 count2=1
    """
    (finding, *rest) = [f for f in checked(text) if f.kind == "race"]
    assert not rest
    assert (finding.core, finding.instruction, finding.engine) == (0, 1, Engine.MTE1)
    assert (finding.memory, finding.blocks, finding.counterpart) == (Memory.L1, (2, 3), (0, 0))
    assert "instruction 1 (MTE1 COPY) and core 0 instruction 0 (MTE2 COPY) touch L1 blocks 2..3" in str(finding)


def races_on(machine, text):
    found = sanitize_program(replace(program(text, buffers=BUFFERS), machine=machine.digest), machine)
    return [finding for finding in found if finding.kind == "race"]


@pytest.mark.parametrize(
    ("ports", "between", "races"),
    [
        (1, "", 0),
        (2, "", 1),
        (2, "MTE2 SET core=0 engine=MTE1 id=0\nMTE1 WAIT core=0 engine=MTE2 id=0", 1),  # nobody in the queue waits
        (2, "MTE2 SET core=0 engine=MTE2 id=0\nMTE2 WAIT core=0 engine=MTE2 id=0", 0),
        (
            2,
            "MTE2 SET core=0 engine=MTE1 id=0\nMTE1 WAIT core=0 engine=MTE2 id=0\n"
            "MTE1 SET core=0 engine=MTE2 id=0\nMTE2 WAIT core=0 engine=MTE1 id=0",
            0,
        ),
    ],
)
def test_loads_on_several_ports_need_flags_for_order(ports, between, races):
    text = f"MTE2 COPY L1[0] DDR[64] length=4 count=1 count2=1\n{between}\nMTE2 COPY L1[2] DDR[64] length=4 count=1 count2=1"
    machine = TINY.model_copy(update={"dma": Dma(load_ports=ports)})
    assert [f.blocks for f in races_on(machine, text)] == [(2, 4)] * races


def test_move_on_chip_has_all_ports_of_dma():
    text = """
    VECTOR VFILL UB[0] blocks=1 repeats=1 dbs=1 f16
    VECTOR SET core=0 engine=MTE3 id=0
    MTE3 WAIT core=0 engine=VECTOR id=0
    MTE3 COPY DDR[160] UB[0] length=1 count=1 count2=1
    {}
    MTE3 COPY DDR[160] UB[0] length=1 count=1 count2=1
    """
    machine = TINY.model_copy(update={"dma": Dma(store_ports=2)})
    moves = ("", "MTE3 COPY L1[0] UB[0] length=1 count=1 count2=1")
    assert [len(races_on(machine, text.format(move))) for move in moves] == [1, 0]


def test_buffer_reuse_before_the_end_of_its_reader():
    """Write after read: the second load overtakes the reader of the first."""
    text = """
    MTE2 COPY L1[0] DDR[64] length=4 count=1 count2=1
    MTE2 SET core=0 engine=MTE1 id=0
    MTE1 WAIT core=0 engine=MTE2 id=0
    MTE1 COPY UB[0] L1[0] length=4 count=1 count2=1
    MTE2 COPY L1[3] DDR[70] length=4 count=1 count2=1
    """
    findings = [f for f in checked(text) if f.kind == "race"]
    assert [(f.instruction, f.blocks, f.counterpart) for f in findings] == [(4, (3, 4), (0, 3))]


def test_several_readers_are_all_remembered():
    """MTE1 and MTE3 read a block; a flag from one of them does not cover the other."""
    text = """
    MTE2 COPY L1[0] DDR[64] length=1 count=1 count2=1
    MTE2 SET core=0 engine=MTE1 id=0
    MTE2 SET core=0 engine=MTE3 id=0
    MTE1 WAIT core=0 engine=MTE2 id=0
    MTE3 WAIT core=0 engine=MTE2 id=0
    MTE1 COPY UB[0] L1[0] length=1 count=1 count2=1
    MTE3 COPY DDR[160] L1[0] length=1 count=1 count2=1
    {} SET core=0 engine=MTE2 id=0
    MTE2 WAIT core=0 engine={} id=0
    MTE2 COPY L1[0] DDR[65] length=1 count=1 count2=1
    """
    for flagged, racing in (("MTE1", 6), ("MTE3", 5)):
        findings = [f for f in checked(text.format(flagged, flagged)) if f.kind == "race"]
        assert [(f.instruction, f.counterpart) for f in findings] == [(9, (0, racing))]


def test_unwritten_reads():
    findings = checked("MTE3 COPY DDR[160] UB[5] length=2 count=1 count2=1\nMTE2 COPY UB[9] DDR[160] length=4 count=1 count2=1")
    shown = [(f.kind, f.instruction, f.memory, f.blocks) for f in findings]
    assert ("unwritten_read", 0, Memory.UB, (5, 7)) in shown
    # the load may also come before the store, and then finds nothing at all
    assert ("unwritten_read", 1, Memory.DDR, (160, 164)) in shown
    assert ("race", 1, Memory.DDR, (160, 162)) in shown
    assert ("unwritten_read", -1, Memory.DDR, (128, 160)) in shown  # nobody wrote the output
    assert len(shown) == 4


def test_only_output_blocks_that_the_host_reads_count():
    """Channels 0..15 of two planes: the second plane is padding, nobody need write it."""
    y = DdrBuffer("y", "output", 128, 32, (1, 16, 2, 8), (), tuple(range(16)), 16, 2)
    text = "MTE2 COPY UB[0] DDR[64] length={0} count=1 count2=1\nMTE2 SET core=0 engine=MTE3 id=0\nMTE3 WAIT core=0 engine=MTE2 id=0\n" \
           "MTE3 COPY DDR[128] UB[0] length={0} count=1 count2=1"  # fmt: skip
    assert checked(text.format(16), buffers=(WEIGHTS, X, y, SCRATCH)) == ()
    (finding,) = checked(text.format(15), buffers=(WEIGHTS, X, y, SCRATCH))
    assert (finding.kind, finding.blocks) == ("unwritten_read", (143, 144))


def test_im2col_reads_only_what_its_taps_name():
    """Columns 0, 2, 4 of a row of which only those are written; `access` names the whole row."""
    copy = "MTE2 COPY L1[0] DDR[64] length=1 count={} sstride=1 dstride=2 count2=1\n"
    rest = """
    MTE2 SET core=0 engine=MTE1 id=0
    MTE1 WAIT core=0 engine=MTE2 id=0
    MTE1 IM2COL L0A[0] L1[0] h=1 w=6 pitch=6 plane=6 kh=1 kw=1 sh=1 sw=2 dh=1 dw=1 ow=3 m=3 mpad=16 k=1 lanes=16
    """
    assert [f for f in checked(copy.format(3) + rest) if f.instruction >= 0] == []
    findings = [f for f in checked(copy.format(2) + rest) if f.instruction >= 0]
    assert [(f.kind, f.blocks) for f in findings] == [("unwritten_read", (4, 5))]


def test_im2col_of_four_lanes_reads_four_pixel_blocks():
    text = """
    MTE2 COPY L1[0] DDR[64] length={} count=1 count2=1
    MTE2 SET core=0 engine=MTE1 id=0
    MTE1 WAIT core=0 engine=MTE2 id=0
    MTE1 IM2COL L0A[0] L1[0] h=2 w=7 pitch=2 plane=4 kh=2 kw=2 sh=1 sw=1 dh=1 dw=1 ow=6 m=6 mpad=16 k=1 lanes=4
    """
    assert [f for f in checked(text.format(4)) if f.instruction >= 0] == []
    findings = [f for f in checked(text.format(3)) if f.instruction >= 0]
    assert [(f.kind, f.blocks) for f in findings] == [("unwritten_read", (3, 4))]


def test_im2col_of_four_bytes_reads_eight_pixel_blocks():
    text = """
    MTE2 COPY L1[0] DDR[64] length={} count=1 count2=1
    MTE2 SET core=0 engine=MTE1 id=0
    MTE1 WAIT core=0 engine=MTE2 id=0
    MTE1 IM2COL L0A[0] L1[0] h=2 w=9 pitch=2 plane=4 kh=1 kw=1 sh=1 sw=1 dh=1 dw=1 ow={} m={} mpad=32 k=1 lanes=4 i8
    """
    assert [f for f in checked(text.format(4, 9, 18)) if f.instruction >= 0] == []
    findings = [f for f in checked(text.format(3, 9, 18)) if f.instruction >= 0]
    assert [(f.kind, f.blocks) for f in findings] == [("unwritten_read", (3, 4))]
    assert [f for f in checked(text.format(3, 8, 16)) if f.instruction >= 0] == []  # the ninth pixel of the last row is not looked at


def test_out_of_bounds_and_constants():
    text = """
    MTE2 COPY L1[2040] DDR[0] length=4 count=3 dstride=4 sstride=1 count2=1
    MTE3 COPY DDR[62] L1[0] length=4 count=1 count2=1
    """
    shown = [(f.kind, f.instruction, f.memory, f.blocks) for f in checked(text) if f.instruction >= 0]
    assert ("out_of_bounds", 0, Memory.L1, (2040, 2052)) in shown
    assert ("constant_write", 1, Memory.DDR, (62, 64)) in shown


def test_deadlock_of_two_queues():
    text = """
    MTE1 WAIT core=0 engine=MTE2 id=0
    MTE1 SET core=0 engine=MTE2 id=0
    MTE2 WAIT core=0 engine=MTE1 id=0
    MTE2 SET core=0 engine=MTE1 id=0
    """
    findings = checked(text)
    assert [(f.kind, f.instruction, f.engine) for f in findings] == [("deadlock", 2, Engine.MTE2), ("deadlock", 0, Engine.MTE1)]


def test_deadlock_by_a_full_queue():
    """Legal with endless queues; with 16 entries the scalar unit never comes to the SET."""
    wait, fill = "MTE2 WAIT core=0 engine=MTE1 id=0\n", "MTE2 COPY L1[0] DDR[64] length=1 count=1 count2=1\n"
    late = "MTE1 SET core=0 engine=MTE2 id=0\n"
    assert not any(f.kind == "deadlock" for f in checked(wait + fill * (TINY.queue_depth - 1) + late))
    findings = [f for f in checked(wait + fill * TINY.queue_depth + late) if f.kind == "deadlock"]
    assert {f.engine for f in findings} == {Engine.MTE1, Engine.MTE2}
    assert "never issued" in next(str(f) for f in findings if f.engine == Engine.MTE1)


def test_flag_counts():
    limit = TINY.flags.count_limit
    sets, waits = "MTE2 SET core=0 engine=MTE1 id=0\n", "MTE1 WAIT core=0 engine=MTE2 id=0\n"
    assert not any(f.kind == "flag_count" for f in checked(sets * limit + waits * limit))
    over = [f for f in checked(sets * (limit + 1) + waits * (limit + 1)) if f.kind == "flag_count"]
    assert [f.instruction for f in over] == [limit]
    # a SET between, ordered after a WAIT by a flag the other way round: legal
    back = "MTE1 SET core=0 engine=MTE2 id=0\nMTE2 WAIT core=0 engine=MTE1 id=0\n"
    assert not any(f.kind == "flag_count" for f in checked(sets * limit + waits + back + sets + waits * limit))
    # one WAIT makes room for one SET, not for two
    over = [f for f in checked(sets * limit + waits + back + sets * 2 + waits * (limit + 1)) if f.kind == "flag_count"]
    assert [f.instruction for f in over] == [limit + 4]
    left = [f for f in checked(sets * 2 + waits) if f.kind == "flag_count"]
    assert ["left with count 1" in str(f) for f in left] == [True]


LOAD, READ = "MTE2 COPY L1[0] DDR[{}] length=4 count=1 count2=1 f16 @{}\n", "MTE1 COPY UB[0] L1[{}] length=1 count=1 count2=1 f16 @{}\n"
THERE = "MTE2 SET core=0 engine=MTE1 id=0\nMTE1 WAIT core=0 engine=MTE2 id=0\n"
BACK = "MTE1 SET core=0 engine=MTE2 id=0\nMTE2 WAIT core=0 engine=MTE1 id=0\n"


@pytest.mark.parametrize(
    ("writes", "reads", "found"),
    [
        ("1.2", "1.2", False),
        ("1.2", "1.3", False),  # L1 passes data from operator to operator
        ("1.2.0", "1.2.7", False),  # weights stay for all blocks
        ("1.2.1", "1.3.2", False),  # and a halo for the next one
        ("2.2", "1.2", True),  # nothing passes from segment to segment
        ("1.2.3", "1.2.2", True),  # nor from a later block to an earlier one
    ],
)
def test_overwritten_in_order(writes, reads, found):
    """A load, a reader, another load to the same place, and, after it, another reader: no race."""
    text = LOAD.format(64, reads) + THERE + READ.format(0, reads) + BACK + LOAD.format(80, writes) + THERE + READ.format(2, reads)
    findings = [f for f in checked(text) if f.core >= 0]
    assert [(f.kind, f.instruction, f.memory, f.blocks, f.counterpart) for f in findings] == [
        ("overwritten_read", 9, Memory.L1, (2, 3), (0, 6)) for _ in range(found)
    ]
    if found:
        segment, operator, block = (*writes.split("."), "0")[:3]
        assert f"core 0 instruction 6 (MTE2 COPY) has overwritten for segment {segment}, operator {operator}, block {block}" in str(
            findings[0]
        )


def test_nothing_but_l1_passes_from_operator_to_operator():
    text = "VECTOR VFILL UB[0] blocks=1 repeats=1 dbs=1 f16 @1.1\nVECTOR VCOPY UB[8] UB[0] blocks=1 repeats=1 dbs=1 s0bs=1 f16 @1.{}\n"
    assert [f for f in checked(text.format(1)) if f.core >= 0] == []
    (finding,) = [f for f in checked(text.format(2)) if f.core >= 0]
    assert (finding.kind, finding.instruction, finding.memory, finding.counterpart) == ("overwritten_read", 1, Memory.UB, (0, 0))


BIAS = """
MTE2    COPY UB[64] DDR[{}]  length=4 count=1 count2=1
MTE2    SET  core=0 engine=FIXPIPE id=0
{}
FIXPIPE WAIT core=0 engine=MTE2 id=0
FIXPIPE FIXPIPE UB[0] L0C[0] UB[64] m=16 mpad=16 n1=2 dplane=16
"""


def test_a_bias_is_a_constant():
    def found(text: str) -> list[tuple[str, Memory, tuple[int, int]]]:
        findings = [f for f in checked(text) if f.kind == "overwritten_read"]
        return [(f.kind, f.memory, f.blocks) for f in findings]

    assert found(BIAS.format(8, "")) == []
    assert found(BIAS.format(64, "")) == [("overwritten_read", Memory.UB, (64, 68))]  # of an input
    over = "MTE2 COPY UB[66] DDR[64] length=1 count=1 count2=1\nMTE2 SET core=0 engine=FIXPIPE id=1\nFIXPIPE WAIT core=0 engine=MTE2 id=1"
    assert found(BIAS.format(8, over)) == [("overwritten_read", Memory.UB, (66, 67))]


QUANTISED = """
MTE2    COPY UB[64] DDR[8] length=4 count=1 count2=1 i32
MTE2    COPY UB[80] DDR[{}] length=4 count=1 count2=1 f32
MTE2    SET  core=0 engine=FIXPIPE id=0
{}
FIXPIPE WAIT core=0 engine=MTE2 id=0
FIXPIPE FIXPIPE UB[0] L0C[0] UB[64] m=16 mpad=16 n1=2 dplane=16 sums=i32 scale=80 high=127 i8
"""


def test_a_scale_is_a_constant():
    def found(text: str) -> list[tuple[str, Memory, tuple[int, int]]]:
        findings = [f for f in checked(text) if f.memory == Memory.UB]
        return [(f.kind, f.memory, f.blocks) for f in findings]

    assert found(QUANTISED.format(12, "")) == []
    assert found(QUANTISED.format(64, "")) == [("overwritten_read", Memory.UB, (80, 84))]  # of an input
    assert found(QUANTISED.replace("scale=80", "scale=82").format(12, "")) == [("unwritten_read", Memory.UB, (84, 86))]


def test_a_table_is_read_whole():
    text = """
    MTE2 COPY UB[0] DDR[64] length=1 count=1 count2=1
    MTE2 COPY UB[8] DDR[0] length={} count=1 count2=1
    MTE2 SET core=0 engine=VECTOR id=0
    VECTOR WAIT core=0 engine=MTE2 id=0
    VECTOR VLUT UB[40] UB[0] UB[8] blocks=1 repeats=1 u8
    """
    assert [f for f in checked(text.format(8)) if f.instruction >= 0] == []
    findings = [f for f in checked(text.format(7)) if f.instruction >= 0]
    assert [(f.kind, f.blocks) for f in findings] == [("unwritten_read", (15, 16))]


def test_overwritten_im2col_names_blocks_of_its_taps():
    taps = "MTE1 IM2COL L0A[0] L1[0] h=1 w=4 pitch=4 plane=4 kh=1 kw=1 sh=1 sw=2 dh=1 dw=1 ow=2 m=2 mpad=16 k=1 lanes=16 f16 @1.1\n"
    late = "MTE2 COPY L1[{}] DDR[80] length=1 count=1 count2=1 f16 @2.1\n"
    for at, found in ((1, []), (2, [(2, 3)])):
        findings = [f for f in checked(LOAD.format(64, "1.1") + late.format(at) + THERE + taps) if f.core >= 0]
        assert [f.blocks for f in findings] == found


def test_cores_share_ddr_only():
    """Core 1 reads what core 0 stored; on-chip blocks of one number are two places."""
    store = """
    MTE2 COPY UB[0] DDR[64] length=1 count=1 count2=1
    MTE2 SET core=0 engine=MTE3 id=0
    MTE3 WAIT core=0 engine=MTE2 id=0
    MTE3 COPY DDR[160] UB[0] length=1 count=1 count2=1
    """
    load = "MTE2 COPY UB[0] DDR[160] length=1 count=1 count2=1\n"
    buffers = (WEIGHTS, X, SCRATCH)
    assert checked(store + "MTE3 SET core=1 engine=MTE2 id=0", "MTE2 WAIT core=0 engine=MTE3 id=0\n" + load, buffers=buffers) == ()
    findings = checked(store, load, buffers=buffers)
    # one of the two, by the order of the run: the load comes first and finds nothing, or the store comes first
    assert {f.kind for f in findings} & {"race"}
    assert all(f.memory == Memory.DDR for f in findings)


def test_illegal_records_are_refused():
    with pytest.raises(ProgramError, match="mpad"):
        checked("CUBE MMAD L0C[0] L0A[0] L0B[0] mpad=17 k=1 n1=1")


# against every pair of accesses -------------------------------------------------------------------------------------

ENGINES = (Engine.MTE2, Engine.MTE1, Engine.MTE3, Engine.VECTOR)


VECTORS = (
    "VCOPY UB[{a}] UB[{b}] blocks={n}",
    "VLUT UB[{a}] UB[{b}] UB[3] blocks={n} u8",
    "VCONVERT UB[{a}] UB[{b}] blocks={n} imm=i8 f32",
    "VCONVERT UB[{a}] UB[{b}] blocks={n} imm=i32 u8",
)
# a row of one or two blocks of eight pixels and one pixel more, each of which is looked at
WINDOWS = "MTE1 IM2COL L0A[{l0a}] L1[{a}] h=1 w={w} pitch=3 plane=3 kh=1 kw=1 sh=1 sw=1 dh=1 dw=1 ow={w} m={w} mpad=32 k=1 lanes=4 pad=9 i8"


@st.composite
def tangled(draw):
    """Short two-core programs: copies, windows and vector instructions on few blocks, flags whose WAIT follows its SET."""
    lines: list[list[str]] = [[], []]
    for _ in range(draw(st.integers(2, 12))):
        core, kind = draw(st.integers(0, 1)), draw(st.integers(0, 6))
        a, b, n = draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 2))
        if kind <= 2:
            engine, to, source = (("MTE2", "L1", "DDR"), ("MTE1", "UB", "L1"), ("MTE3", "DDR", "UB"))[kind]
            at = {"DDR": 200}
            lines[core].append(
                f"{engine} COPY {to}[{at.get(to, 0) + a}] {source}[{at.get(source, 0) + b}] length={n} count=1 count2=1"
            )  # fmt: skip
        elif kind == 3:
            lines[core].append(f"VECTOR {draw(st.sampled_from(VECTORS)).format(a=a, b=b, n=n)} repeats=1 dbs=1 s0bs=1")
        elif kind == 4:
            lines[core].append(WINDOWS.format(a=a, w=8 * n + 1, l0a=draw(st.sampled_from([0, 32]))))
        else:
            other = draw(st.integers(0, 1))
            e, f = draw(st.sampled_from(ENGINES)), draw(st.sampled_from(ENGINES))
            if (core, e) != (other, f):
                lines[core].append(f"{e.name} SET core={other} engine={f.name} id=0")
                lines[other].append(f"{f.name} WAIT core={core} engine={e.name} id=0")
    return ["\n".join(part) for part in lines]


def racing_pairs(streams) -> set[frozenset[tuple[int, int]]]:
    """All races by brute force: transitive closure of queue order and flags, every pair of accesses."""
    nodes = [(core, i) for core, code in enumerate(streams) for i in range(len(code))]
    number = {node: k for k, node in enumerate(nodes)}
    order = np.eye(len(nodes), dtype=bool)
    last: dict[tuple[int, int], int] = {}
    flags: dict[tuple[tuple[int, ...], int], list[int]] = {}
    blocks = []
    rows = np.zeros((MAX_RANGES, 8), np.int64)
    for core, i in nodes:
        record = streams[core][i]
        here = (core, int(record[isa.ENGINE]))
        me = number[core, i]
        if here in last:
            order[last[here], me] = True
        last[here] = me
        there = (int(record[isa.FLAG_CORE]), int(record[isa.FLAG_ENGINE]))
        if record[isa.OP] == Op.SET:
            flags.setdefault((here + there, 0), []).append(me)
        elif record[isa.OP] == Op.WAIT:
            flags.setdefault((there + here, 1), []).append(me)
        touched: tuple[set, set] = (set(), set())
        for row in rows[: accesses(streams[core], i, rows)].tolist():
            owner = -1 if row[0] == Memory.DDR else core
            for b, r, o in itertools.product(range(row[3]), range(row[4]), range(row[6])):
                touched[row[1]].add((owner, row[0], row[2] + b + r * row[5] + o * row[7]))
        blocks.append(touched)
    for (key, kind), sets in flags.items():
        if kind == 0:
            for s, w in zip(sets, flags[key, 1], strict=True):
                order[s, w] = True
    for k in range(len(nodes)):
        order |= order[:, k : k + 1] & order[k : k + 1]
    pairs = set()
    for a, b in itertools.combinations(range(len(nodes)), 2):
        clash = blocks[a][1] & (blocks[b][0] | blocks[b][1]) | blocks[b][1] & blocks[a][0]
        if clash and not order[a, b] and not order[b, a]:
            pairs.add(frozenset((nodes[a], nodes[b])))
    return pairs


@settings(max_examples=300, deadline=None)
@given(tangled())
def test_races_are_those_of_brute_force(texts):
    """Every race that is reported is one, and one is reported wherever there is any."""
    buffers = (DdrBuffer("x", "input", 0, DDR_BLOCKS),)
    p = Program(TINY.digest, tuple(parse(text) for text in texts), MemoryMap(DataType.float16, buffers, DDR_BLOCKS))
    findings = sanitize_program(p, TINY)
    if any(f.kind == "deadlock" for f in findings):
        return
    found = {frozenset(((f.core, f.instruction), f.counterpart)) for f in findings if f.kind == "race"}
    expected = racing_pairs(p.streams)
    assert found <= expected
    assert bool(found) == bool(expected)
