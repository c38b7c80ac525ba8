"""What one instruction costs, worked out on paper, for every kind of matrix unit."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.npu import isa
from simulator.npu.cycles import cost_tables, latency_cycles, price
from simulator.npu.dram import DRAMS
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.machine_parts import CubeUnit, SystolicUnit
from simulator.npu.parts import DataType, Engine, Memory
from tests.integers import with_integers
from tests.lacking import without
from tests.plans import multiplying
from tests.programs import record

TINY, EDGE = load_machine("tiny"), load_machine("edge")
DDR, L1, L0A, L0B, L0C, UB, SHARED = Memory
OUTPUT, WEIGHT = "output-stationary", "weight-stationary"


def array(rows: int, columns: int, dataflow: str, pipelined: bool, startup: int = 0) -> Machine:
    values = TINY.matrix.model_dump() | {
        "kind": "systolic", "rows": rows, "columns": columns, "dataflow": dataflow, "pipelined": pipelined,
        "passes": {"float16": 1, "float32": 3}, "startup_cycles": startup,
    }  # fmt: skip
    del values["cycles_per_fractal"]
    return Machine.model_validate(TINY.model_dump() | {"matrix": values})


def cube(m0: int, k0: int, n0: int, cycles: int) -> Machine:
    """The same product of either type."""
    return multiplying(TINY, float16=(m0, k0, n0, cycles), float32=(m0, k0, n0, cycles))


def busy(machine: Machine, *row: int, dtype: int = 0) -> int:
    """Of one MMAD: mpad, k, n1."""
    code = record(Op.MMAD, Engine.CUBE, *row, 0, dtype=dtype, src=L0A, dst=L0C, d=0, s=(0, 0))
    return int(price(code[None], machine).busy[0])


@pytest.mark.parametrize(
    ("machine", "row", "cycles"),
    [
        # 2 * 3 * 2 fractals, a cycle each behind 8
        (EDGE, (32, 3, 2), 8 + 12),
        # M = 32, K = 48, N = 32: a pixel at a time by all of K, and half of what 32 or 16 channels take
        (cube(1, 64, 32, 1), (32, 3, 2), 32),
        (cube(1, 64, 16, 1), (32, 3, 2), 32 * 2),
        (cube(1, 16, 16, 1), (33, 3, 2), 33 * 3 * 2),
        # one step of 32 rows, six of 8 channels, one of 32
        (cube(32, 8, 32, 1), (32, 3, 2), 6),
        (cube(32, 8, 32, 3), (48, 3, 3), 3 * 2 * 6 * 2),
        # far more than there is, and nothing that fits: 3 * 5 * 2 steps
        (cube(128, 128, 128, 7), (32, 3, 2), 7),
        (cube(12, 10, 24, 1), (32, 3, 2), 3 * 5 * 2),
        # M = 32, K = 48, N = 32 on 16 x 8: 2 * 4 tiles of 16 + 8 + 48 - 2
        (array(16, 8, OUTPUT, False), (32, 3, 2), 8 * 70),
        (array(16, 8, OUTPUT, False, startup=5), (32, 3, 2), 5 + 8 * 70),
        # the same tiles back to back: 48 steps, more than the 16 in which sums leave
        (array(16, 8, OUTPUT, True), (32, 3, 2), 8 * 48),
        # K = 16 on 64 rows: the 64 cycles in which sums leave count
        (array(64, 8, OUTPUT, True), (32, 1, 2), 4 * 64),
        # K / 16 * N / 8 = 3 * 4 tiles of 2 * 16 + 8 + 32 - 2
        (array(16, 8, WEIGHT, False), (32, 3, 2), 12 * 70),
        # 12 tiles, 32 rows pass
        (array(16, 8, WEIGHT, True), (32, 3, 2), 12 * 32),
        # 128 rows of weights come in while 32 rows pass: one tile of k, 32 channels in four tiles
        (array(128, 8, WEIGHT, True), (32, 3, 2), 4 * 128),
        # a part of a tile costs as much as a whole one: K = 48 on 32 rows is two, N = 16 on 128 columns one
        (array(32, 128, WEIGHT, True), (64, 3, 1), 2 * 64),
        (array(32, 128, OUTPUT, False), (48, 1, 1), 2 * (32 + 128 + 16 - 2)),
    ],
)
def test_a_matrix_product(machine: Machine, row: tuple[int, int, int], cycles: int) -> None:
    assert busy(machine, *row) == cycles


def test_other_types_take_their_passes() -> None:
    """C0 is 8 in float32: k = 6 is K = 48."""
    assert busy(EDGE, 32, 6, 2, dtype=1) == 8 + 2 * 24
    assert busy(cube(12, 10, 24, 2), 32, 6, 2, dtype=1) == 2 * 3 * 5 * 2
    assert busy(array(16, 8, WEIGHT, True), 32, 6, 2, dtype=1) == 3 * 12 * 32
    assert busy(array(16, 8, OUTPUT, False), 32, 6, 2, dtype=1) == 3 * 8 * 70


def test_integers_have_products_of_their_own() -> None:
    """C0 is 32 in int8: k = 2 is K = 64, N = 32; either sign of either operand costs the same."""
    integers = multiplying(EDGE, int8=(16, 32, 16, 1))
    wide = multiplying(EDGE, int8=(1, 64, 32, 3))
    unit = array(16, 8, WEIGHT, True)
    systolic = unit.model_copy(update={"matrix": unit.matrix.model_copy(update={"passes": {"int8": 2}})})
    for dtype in (DataType.int8, DataType.uint8):
        assert busy(integers, 32, 2, 2, dtype=dtype) == 8 + 2 * 2 * 2
        assert busy(wide, 32, 2, 2, dtype=dtype) == 8 + 32 * 1 * 1 * 3
        assert busy(systolic, 32, 2, 2, dtype=dtype) == 2 * (64 // 16) * (32 // 8) * 32
    assert integers.macs_per_cycle == {"int8": 16 * 32 * 16}


def test_look_up_and_conversions() -> None:
    """On tiny a repeat takes a cycle; of int8 to 32 bits or back, which has four blocks on one side, two; of a look-up every 8 blocks."""

    def cycles(op: Op, dtype: DataType, source: DataType) -> int:
        code = record(op, Engine.VECTOR, 8, 5, *[1] * 8, source, dtype=dtype, src=UB, dst=UB, d=0, s=(0, 100))
        return int(price(code[None], with_integers(TINY)).busy[0])

    for dtype, expected in ((DataType.int8, 5), (DataType.float16, 10), (DataType.float32, 20)):
        assert cycles(Op.VLUT, dtype, DataType.float16) == expected
    assert cycles(Op.VLANE_ADD, DataType.float32, DataType.float16) == 15
    for wide, narrow, expected in (
        (DataType.float32, DataType.int8, 10),
        (DataType.int32, DataType.uint8, 10),
        (DataType.float16, DataType.int8, 5),
        (DataType.float32, DataType.float16, 5),
        (DataType.float32, DataType.int32, 5),
    ):
        assert cycles(Op.VCONVERT, wide, narrow) == cycles(Op.VCONVERT, narrow, wide) == expected


def test_only_a_pipelined_array_has_latency() -> None:
    assert latency_cycles(EDGE) == 0
    assert latency_cycles(array(16, 8, OUTPUT, False)) == latency_cycles(array(16, 8, WEIGHT, False)) == 0
    assert latency_cycles(array(16, 8, OUTPUT, True)) == 16 + 8 - 2
    assert latency_cycles(array(16, 8, WEIGHT, True)) == 2 * 16 + 8 - 2


def test_fractal_product_is_the_default_of_a_file() -> None:
    cycles = {DataType.float16: 1, DataType.float32: 2, DataType.int8: 1}
    rates = {dtype.name: (16, dtype.lanes, 16, each) for dtype, each in cycles.items()}
    assert cost_tables(multiplying(EDGE, **rates)).matrix.tolist() == cost_tables(EDGE).matrix.tolist()


ARRAYS = st.builds(array, st.integers(1, 200), st.integers(1, 200), st.sampled_from([OUTPUT, WEIGHT]), st.booleans())
UNITS = ARRAYS | st.builds(cube, *[st.integers(1, 130)] * 3, st.integers(1, 9)) | st.just(TINY)


@given(UNITS, st.integers(1, 20), st.integers(1, 40), st.integers(1, 20), st.sampled_from([DataType.float16, DataType.float32]))
@example(array(7, 7, WEIGHT, True), 5, 7, 7, DataType.float32)
def test_no_product_is_faster_than_the_peak(machine: Machine, m16: int, k: int, n1: int, dtype: DataType) -> None:
    macs = m16 * 16 * k * dtype.lanes * n1 * 16
    assert busy(machine, m16 * 16, k, n1, dtype=int(dtype)) * machine.macs_per_cycle[dtype.name] >= macs * (
        1 - 1e-12
    )  # a peak may be a third


@given(UNITS, st.integers(1, 20), st.integers(2, 40), st.integers(1, 20), st.integers(1, 39))
def test_a_product_in_two_is_never_cheaper(machine: Machine, m16: int, k: int, n1: int, first: int) -> None:
    first = min(first, k - 1)
    assert busy(machine, m16 * 16, first, n1) + busy(machine, m16 * 16, k - first, n1) >= busy(machine, m16 * 16, k, n1)


def test_peak_is_reached_by_whole_tiles_in_sequence() -> None:
    machine = array(16, 32, WEIGHT, True)
    assert machine.macs_per_cycle == {"float16": 512.0, "float32": pytest.approx(512 / 3)}
    assert busy(machine, 64, 4, 4) * 512 == 64 * 64 * 64
    assert EDGE.macs_per_cycle == {"float16": 4096.0, "float32": 1024.0, "int8": 8192.0}
    assert load_machine("nvdla-large").macs_per_cycle["int8"] == 2048  # the primer's


def test_kinds_are_told_apart() -> None:
    assert isinstance(EDGE.matrix, CubeUnit)
    assert isinstance(load_machine("tpu-like").matrix, SystolicUnit)
    assert len({array(16, 8, flow, piped).digest for flow in (OUTPUT, WEIGHT) for piped in (False, True)}) == 4


def copy(src: Memory, dst: Memory, length: int, count: int, sstride: int, dstride: int) -> tuple[int, int, int]:
    """(busy, bus units, useful bytes) on edge."""
    path = EDGE.path(src, dst)
    assert path is not None
    code = record(Op.COPY, Engine[path.engine], length, count, sstride, dstride, 1, 0, 0, src=src, dst=dst, d=0, s=(0,))
    found = price(code[None], EDGE)
    return int(found.busy[0]), int(found.bus[0]), int(found.useful[0])


def port_bytes(machine: Machine, *row: int, out: bool = False) -> float:
    """What a COPY (length, count, strides, count2, strides2; in blocks) between DDR and L1 or UB takes off the port."""
    src, dst, engine = (UB, DDR, Engine.MTE3) if out else (DDR, L1, Engine.MTE2)
    cost = price(record(Op.COPY, engine, *row, src=src, dst=dst, d=0, s=(0,))[None], machine)
    assert cost.busy[0] == 0
    assert cost.useful[0] == row[0] * 32 * row[1] * row[4] * (-1 if out else 1)
    return float(cost.bus[0]) / (1 << 16)


def test_runs_at_effective_rate_round_up_to_granules() -> None:
    ascend = load_machine("ascend310")  # 64 bytes
    assert port_bytes(ascend, 2, 5, 4, 2, 1, 0, 0) == 320
    assert port_bytes(ascend, 1, 5, 4, 1, 1, 0, 0) == 2 * 160
    assert port_bytes(ascend, 1, 5, 1, 3, 1, 0, 0) == 192  # runs that touch in DDR are one: 160, rounded up
    assert port_bytes(ascend, 1, 5, 1, 3, 1, 0, 0, out=True) == 2 * 160  # and it is the side of DDR that counts
    assert port_bytes(ascend, 1, 5, 3, 1, 1, 0, 0, out=True) == 192
    assert port_bytes(ascend, 1, 5, 1, 3, 4, 5, 99) == 640  # groups that touch, too
    assert port_bytes(load_machine("tiny"), 1, 5, 4, 1, 1, 0, 0) == 160


def test_rows_at_pin_rate_cost_at_least_opening() -> None:
    # LPDDR5: 32-byte bursts, pages of 2048, and 60 * 21 / 96 ns between two rows: 168 bytes of 12.8 bytes per ns
    assert DRAMS["lpddr5"].activate_bytes == 168
    far = 1000  # blocks, so every run is in a row of its own
    assert port_bytes(EDGE, 1, 6, far, 1, 1, 0, 0) == 6 * 168
    assert port_bytes(EDGE, 2, 64, far, 2, 1, 0, 0) == 64 * 168 * (1 + 32 / 2048)  # a run of 64 may begin at a page's last block
    assert port_bytes(EDGE, 8, 4, far, 8, 1, 0, 0) == 4 * 256  # as long as the pins take for it
    assert port_bytes(EDGE, 2, 4, far, 2, 5, 3 * far, 8) == 20 * 168 * (1 + 32 / 2048)
    # 128 runs, two blocks apart: 4 rows and what may be of a fifth cost 672 and more, bursts 4096
    assert port_bytes(EDGE, 1, 128, 2, 1, 1, 0, 0) == 4096
    # 16 blocks apart four to a row: 1 + 15 * 512 / 2048 rows of 16 runs
    assert port_bytes(EDGE, 1, 16, 16, 1, 1, 0, 0) == 168 * (1 + 15 * 512 / 2048)
    assert port_bytes(EDGE, 4096, 1, 0, 0, 1, 0, 0) == 4096 * 32


def test_bursts_are_of_an_alignment_class() -> None:
    """DDR4's are of 64 bytes: at a stride of whole bursts a run is rounded up, else it has half a burst more on average."""
    ddr4 = load_machine("edge:ddr.dram=ddr4")
    assert DRAMS["ddr4"].activate_bytes == 259
    assert port_bytes(ddr4, 33, 4, 50, 33, 1, 0, 0) == 4 * 34 * 32
    assert port_bytes(ddr4, 34, 4, 50, 34, 1, 0, 0) == 4 * 34 * 32
    assert port_bytes(ddr4, 34, 4, 51, 34, 1, 0, 0) == 4 * 35 * 32
    assert port_bytes(ddr4, 33, 4, 50, 33, 2, 301, 132) == 8 * 34 * 32  # 33 + 1: the same, whatever the alignment


def test_where_a_tensor_lies_does_not_matter() -> None:
    here = record(Op.COPY, Engine.MTE2, 2, 9, 7, 2, 3, 99, 18, src=DDR, dst=L1, d=0, s=(0,))
    there = record(Op.COPY, Engine.MTE2, 2, 9, 7, 2, 3, 99, 18, src=DDR, dst=L1, d=64, s=(12345,))
    assert price(here[None], EDGE).bus == price(there[None], EDGE).bus


@settings(max_examples=200)
@given(st.integers(1, 70), st.integers(1, 9), st.integers(0, 80), st.sampled_from(sorted(DRAMS)), st.sampled_from([32, 64, 96]))
def test_longer_runs_and_more_runs_cost_no_less(length: int, count: int, gap: int, dram: str, granule: int) -> None:
    machine = load_machine(f"edge:ddr.dram={dram},paths.DDR->L1.granule_bytes={granule}")
    stride = length + 2 + gap  # the same for all: another one may be of another alignment class
    cost = port_bytes(machine, length, count, stride, length, 1, 0, 0)
    assert cost >= length * count * 32
    assert cost <= port_bytes(machine, length + 1, count, stride, length, 1, 0, 0)
    assert cost <= port_bytes(machine, length, count + 1, stride, length, 1, 0, 0)
    # one transfer of them costs no more than each alone and a row more
    alone = sum(port_bytes(machine, length, 1, 0, 0, 1, 0, 0) for _ in range(count))
    assert cost <= alone + count * (DRAMS[dram].burst_bytes + DRAMS[dram].activate_bytes)


def test_move_on_chip_rounds_up_to_granules() -> None:
    assert copy(L1, UB, 3, 4, 3, 3) == (8 + 3, 0, 0)  # 384 bytes at 128
    assert copy(L1, UB, 3, 3, 3, 3) == (8 + 3, 0, 0)  # 288
    paths = [path.model_copy(update={"granule_bytes": 128}) for path in EDGE.paths]
    code = record(Op.COPY, Engine.MTE1, 3, 4, 3, 3, 1, 0, 0, src=L1, dst=UB, d=0, s=(0,))
    assert price(code[None], EDGE.model_copy(update={"paths": tuple(paths)})).busy[0] == 8 + 4  # a granule per burst


def test_im2col_fixpipe_and_vector() -> None:
    im2col = record(Op.IM2COL, Engine.MTE1, 8, 8, 8, 64, 1, 1, 1, 1, 1, 1, 0, 0, 8, 0, 64, 64, 0, 2, 16, src=L1, dst=L0A, d=0, s=(0,))
    fractal = record(Op.FRACTAL, Engine.MTE1, 197, 21, 4, 13, 1, src=L1, dst=L0B, d=0, s=(0,))
    fixpipe = record(Op.FIXPIPE, Engine.FIXPIPE, 50, 64, 3, 50, 50, 0, src=L0C, dst=UB, d=0, s=(0,))
    exp = record(Op.VEXP, Engine.VECTOR, 8, 100, 1, 8, 1, 8, src=UB, dst=UB, d=0, s=(0,))
    cycles = [int(price(code[None], EDGE).busy[0]) for code in (im2col, fractal, fixpipe, exp)]
    # 64 * 2 blocks at 512 bytes; 4 * 13 * 16 at 256, pixels that are not there too; 50 * 3 * 64 bytes at 256; 100 repeats of 4 behind 6
    assert cycles == [8 + 8, 8 + 4 * 13 * 16 * 32 // 256, 8 + math.ceil(50 * 3 * 64 / 256), 6 + 400]


def read_in_place(rate: int, kernel: int, stride: int, m: int, k: int, n1: int) -> int:
    """Busy cycles of an MMAD_IM2COL over an image of 8 x 8 blocks in 4 planes, padded by one pixel."""
    raw = without(EDGE, "L0A", "L0B").model_dump(mode="json")
    for path in raw["paths"]:
        if path["engine"] == "CUBE":
            path |= {"bytes_per_cycle": rate, "startup_cycles": 0}
    window = [isa.pack_pair(each, each) for each in (kernel, stride, 1, kernel // 2)]
    words = (8, 8, 8, 64, *window, n1, 0, 0, k * 16, 8 // stride, 0, m, m, 0, k, 16)
    code = record(Op.MMAD_IM2COL, Engine.CUBE, *words, src=L1, dst=L0C, d=0, s=(0, 256))
    return int(price(code[None], Machine.model_validate(raw)).busy[0])


def test_product_in_place_takes_operand_or_step_time() -> None:
    # 2 * 4 * 1 fractals; 32 pixels of 4 planes and 64 blocks of weights
    assert read_in_place(32, 1, 1, 32, 4, 1) == 8 + 32 * 4 + 64
    assert read_in_place(1 << 12, 1, 1, 32, 4, 1) == 8 + 8
    # 3x3 over four rows sees five of them, each block once, in 4 planes
    assert read_in_place(32, 3, 1, 32, 36, 1) == 8 + 5 * 8 * 4 + 36 * 16
    # no more than all that the window names: two pixels in one row of one plane
    assert read_in_place(32, 1, 1, 2, 1, 1) == 8 + 2 + 16


def test_narrow_vector_unit_takes_time_for_actual_lanes() -> None:
    narrow = Machine.model_validate(TINY.model_dump() | {"vector": TINY.vector.model_dump() | {"width_bytes": 64, "simple_cycles": 3}})

    def cycles(blocks: int, op: Op = Op.VCOPY, imm: int = 0) -> int:
        words = (blocks, 5, 1, 8, 1, 8, 0, 0, 0, 0, imm)
        return int(price(record(op, Engine.VECTOR, *words, src=UB, dst=UB, d=0, s=(64,))[None], narrow).busy[0])

    assert [cycles(blocks) for blocks in (1, 2, 3, 8)] == [15, 15, 30, 60]
    assert cycles(8, Op.VCONVERT, int(DataType.float32)) == 60  # float32 to float16
    assert narrow.digest != TINY.digest == Machine.model_validate(TINY.model_dump()).digest
