"""Machine files: what is wrong in one is named with file, key and value."""

from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from simulator.npu.cycles import port_units
from simulator.npu.errors import BadInputError
from simulator.npu.level import NO_CONTENTION, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import configs_folder, load_machine, preset_names, read_yaml
from simulator.npu.parts import FRACTALS, DataType, Engine, Memory
from tests.messages import naming
from tests.plans import multiplying

PRESETS = preset_names()
PRODUCT = {"m0": 1, "k0": 64, "n0": 32, "cycles": 1}


def text_of(name: str) -> str:
    return (configs_folder() / "machines" / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.fixture
def tiny() -> dict:
    return yaml.safe_load(text_of("tiny"))


def load(tmp_path: Path, raw: dict | str) -> Machine:
    path = tmp_path / "m.yaml"
    path.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return load_machine(str(path))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads_and_says_every_value_itself(name):
    machine = load_machine(name)
    assert machine.name == name
    given = yaml.safe_load(text_of(name))
    assert set(given) == set(Machine.model_fields), "a preset leaves nothing to defaults"
    assert machine.description
    assert machine.contention["none"] == NO_CONTENTION
    assert machine.contention["none"].share_units == 65536
    assert Machine.model_validate_json(machine.model_dump_json()).digest == machine.digest


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_brings_data_through_the_cube(name):
    machine = load_machine(name)
    vectors = machine.vector_memory.name
    operands = [("L1", "L0A"), ("L1", "L0B")] if machine.has(Memory.L0A) else [("L1", "L0C")]
    for source, destination in [("DDR", "L1"), *operands, ("L0C", vectors), (vectors, "DDR")]:
        assert machine.path(Memory[source], Memory[destination]) is not None, f"{source} -> {destination}"
    assert machine.path(Memory.DDR, Memory.L0C) is None


def test_matrix_unit_names_its_products_at_a_time(tmp_path, tiny):
    tiny["matrix"] = {"kind": "cube", "cycles_per_fractal": {"float32": 3}, "products": {"float16": PRODUCT}, "startup_cycles": 0}
    machine = load(tmp_path, tiny)
    assert machine.matrix.data_types == ("float16", "float32")
    assert machine.macs_per_cycle == {"float16": 64 * 32, "float32": Fraction(16 * 8 * 16, 3)}
    assert Machine.model_validate_json(machine.model_dump_json()) == machine != load_machine("tiny")
    assert load_machine(f"{tmp_path}/m.yaml:matrix.products.float16.m0=4").macs_per_cycle["float16"] == 4 * 64 * 32


@pytest.mark.parametrize(("m0", "rows"), [(1, 1), (3, 1), (4, 4), (12, 4), (16, 16), (24, 8), (32, 16), (128, 16)])
def test_padded_rows_are_at_most_those_of_product(m0, rows):
    machine = multiplying(load_machine("tiny"), float16=(m0, 64, 32, 1))
    assert [machine.fractal(dtype).rows for dtype in DataType] == [rows, 16, 16, 16, 16]
    assert machine.fractal(DataType.float16)[1:] == FRACTALS[DataType.float16][1:]


def test_digests_tell_machines_apart_and_not_comments(tmp_path, tiny):
    assert len({load_machine(name).digest for name in PRESETS}) == len(PRESETS)
    assert load(tmp_path, tiny).digest == load_machine("tiny").digest
    assert load(tmp_path, tiny | {"queue_depth": tiny["queue_depth"] + 1}).digest != load_machine("tiny").digest


def test_a_changed_file_is_read_again(tmp_path, tiny):
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(tiny))
    assert load_machine(str(path)).queue_depth == 16
    path.write_text(yaml.safe_dump(tiny | {"queue_depth": 99}))
    assert load_machine(str(path)).queue_depth == 99


def change(tiny: dict, where: str, value: object) -> dict:
    *folders, last = where.split(".")
    at = tiny
    for key in folders:
        at = at[int(key) if key.isdigit() else key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return tiny


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("frequency", 5, r"frequency: no such key \(got 5\)"),
        ("ddr.speed", 5, r"ddr\.speed: no such key"),
        ("ddr.latency_cycles", None, r"missing: ddr\.latency_cycles"),
        ("buffers_bytes.L1", -32, r"buffers_bytes\.L1: .*greater than or equal to 1 \(got -32\)"),
        ("buffers_bytes.L0A", None, r"buffers_bytes: .*L0A is left out; accepted: L0A and L0B, or neither"),
        ("buffers_bytes.UB", None, r"paths: DDR -> UB: the machine has no UB; accepted: with buffers_bytes\.UB"),
        ("buffers_bytes.L0C", None, r"missing: buffers_bytes\.L0C"),
        ("vector.width_bytes", 48, r"vector\.width_bytes: .*32, 64, 128 or 256 \(got 48\)"),
        ("paths.2.engine", "CUBE", r"paths\.2: .*L1->L0A: engine CUBE; accepted: CUBE of L1->L0C"),
        ("buffers_bytes.L1", 100, r"buffers_bytes: .*L1: 100 is not a multiple of 32"),
        ("buffers_bytes.L1", 2**80, r"buffers_bytes\.L1"),
        ("cores", 0, r"cores: .*\(got 0\)"),
        ("cores", 65, r"cores: .*\(got 65\)"),
        ("clock_hz", 1.5, r"clock_hz: .*\(got 1\.5\)"),
        ("clock_hz", "fast", r"clock_hz: .*\(got 'fast'\)"),
        ("name", "No Good", r"name: .*pattern"),
        ("matrix.kind", "sphere", r"matrix: .*'sphere' found using 'kind'.*'cube', 'systolic'"),
        ("matrix.rows", 8, r"matrix\.rows: no such key \(got 8\)"),
        ("launch_cycles", -1, r"launch_cycles: .*\(got -1\)"),
        ("matrix.cycles_per_fractal", {"float64": 1}, r"matrix\.cycles_per_fractal"),
        (
            "matrix.cycles_per_fractal",
            None,
            r"matrix: cycles_per_fractal or products: of no data type; accepted: of float16, ",
        ),
        ("matrix.products", {"float32": PRODUCT}, r"matrix: float32: in cycles_per_fractal and in products; accepted: in one of them"),
        ("matrix.products", {"uint8": PRODUCT}, r"matrix\.products\.uint8.*'float16', 'float32' or 'int8'"),
        ("vector.lookup_cycles", 0, r"vector\.lookup_cycles: .*\(got 0\)"),
        ("vector.ordered_cycles", 0, r"vector\.ordered_cycles: .*\(got 0\)"),
        ("matrix.products", {"float16": PRODUCT | {"m0": 0}}, r"matrix\.products\.float16\.m0: .*greater than or equal to 1 \(got 0\)"),
        (
            "matrix.products",
            {"float16": PRODUCT | {"n0": 65537}},
            r"matrix\.products\.float16\.n0: .*equal to 65536 \(got 65537\)",
        ),
        ("matrix.products", {"float16": PRODUCT | {"k0": 2.5}}, r"matrix\.products\.float16\.k0: .*\(got 2\.5\)"),
        ("matrix.products", {"float16": PRODUCT | {"cycles": 0}}, r"matrix\.products\.float16\.cycles: .*\(got 0\)"),
        ("matrix.products", {"float16": PRODUCT | {"cycles": 1 << 21}}, r"matrix\.products\.float16\.cycles: .*\(got 2097152\)"),
        ("matrix.products", {"float16": PRODUCT | {"rows": 4}}, r"matrix\.products\.float16\.rows: no such key \(got 4\)"),
        ("matrix.products", {"float16": {"m0": 1, "k0": 64}}, r"missing: matrix\.products\.float16\.n0, matrix\.products\.float16\.cycles"),
        ("matrix.products", [1, 64, 32], r"matrix\.products"),
        ("paths.0.engine", "SCALAR", r"paths\.0\.engine: .*'MTE1'"),
        ("paths.0.source", "L3", r"paths\.0\.source: .*'DDR'"),
        ("paths.0.bytes_per_cycle", 0, r"paths\.0\.bytes_per_cycle"),
        ("paths.1.destination", "L1", r"paths: DDR -> L1 is listed twice"),
        ("paths.0.bytes_per_cycle", -1.5, r"paths\.0\.bytes_per_cycle"),
        ("paths.2.bytes_per_cycle", 1.5, r"paths\.2: L1->L0A: bytes_per_cycle 1\.5; accepted on chip: whole numbers"),
        ("ddr.rate", "peak", r"ddr\.rate: .*'pins' or 'effective' \(got 'peak'\)"),
        ("ddr.rate", "pins", r"ddr: rate: pins needs dram; accepted: ddr4, hbm2, lpddr4, lpddr5"),
        ("ddr.dram", "ddr4", r"ddr: dram: ddr4; an effective rate has none: .*; accepted: null, or rate: pins"),
        ("ddr.dram", "sram", r"ddr\.dram: accepted: ddr4, hbm2, lpddr4, lpddr5 \(got 'sram'\)"),
        ("ddr.bytes_per_cycle", float("nan"), r"ddr\.bytes_per_cycle: .*\(got nan\)"),
        ("contention", {"none": 1.0, "worst": 0.0}, r"contention\.worst\.share: .*\(got 0\.0\)"),
        ("contention", {"none": 1.0, "worst": 1e-5}, r"contention\.worst\.share: accepted: .* from 1/65536, .* to 1 \(got 1e-05\)"),
        ("contention", {"none": 1.5}, r"contention\.none\.share: accepted: .*\(got 1\.5\)"),
        (
            "contention",
            {"none": "half"},
            r"contention\.none: accepted: a share, or a mapping of share and latency_cycles, and of what is granted: .* \(got 'half'\)",
        ),
        ("contention", {"none": [1.0]}, r"contention\.none: accepted: a share, or a mapping of share and latency_cycles"),
        ("contention", {"none": {"share": 1, "latency_cycles": -1}}, r"contention\.none\.latency_cycles: .*\(got -1\)"),
        ("contention", {"none": {"share": 1, "latency_cycles": 2**20 + 1}}, r"contention\.none\.latency_cycles: .*\(got 1048577\)"),
        ("contention", {"none": {"latency_cycles": 1}}, r"missing: contention\.none\.share"),
        ("contention", {"none": {"share": 1, "delay": 1}}, r"contention\.none\.delay: no such key"),
    ],
)
def test_wrong_value_has_file_key_and_value(tmp_path, tiny, where, value, message):
    with pytest.raises(BadInputError, match=rf"m\.yaml: .*{message}") as caught:
        load(tmp_path, change(tiny, where, value))
    assert "\n" not in str(caught.value)


def test_all_complaints_come_at_once(tmp_path, tiny):
    tiny["cores"], tiny["clock_hz"] = 0, 0
    with pytest.raises(BadInputError, match=r"cores: .*; clock_hz: "):
        load(tmp_path, tiny)


def test_many_and_long_complaints_stay_one_short_line(tmp_path, tiny):
    tiny |= {f"odd\nkey {i}": "long" * 1000 for i in range(20)}
    with pytest.raises(BadInputError, match=naming("odd key 0", "12 more")) as caught:
        load(tmp_path, tiny)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_long_value_leaves_room_for_accepted_ones(tmp_path, tiny):
    tiny["matrix"]["kind"] = "long" * 1000
    with pytest.raises(BadInputError, match=r"matrix: Input tag 'long.*'cube', 'systolic'") as caught:
        load(tmp_path, tiny)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\ncores: 1\nname: b\n", r"line 3: key 'name' is given twice"),
        ("ddr:\n  outstanding: 1\n  outstanding: 2\n", r"line 3: key 'outstanding' is given twice"),
        ("name: [", r"not YAML"),
        ("- 1\n", r"expected a mapping of machine keys, found list"),
        ("", r"expected a mapping of machine keys, found NoneType"),
        ("? [1, 2]\n: 3\n", r"line 1: a key is a name or a number, found \[1, 2\]"),
        ("name: 2020-99-99\n", r"not YAML: month"),
        ("name: !!timestamp x\n", r"not YAML"),
        ("cores: !!bool x\n", r"not YAML"),
        ("cores: !!int ''\n", r"not YAML"),
        pytest.param("[" * 5000, r"not YAML", id="deep"),
        ("a: !!python/object/apply:os.getcwd []\n", r"not YAML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, message):
    with pytest.raises(BadInputError, match=message) as caught:
        load(tmp_path, text)
    assert "m.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "m.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInputError, match=r"m\.yaml: (cannot be read|not YAML)"):
        read_yaml(tmp_path / "m.yaml")


@pytest.mark.parametrize("name", ["ascend9000", "no/such/file.yaml", "", ".."])
def test_an_unknown_machine_names_those_that_exist(name):
    with pytest.raises(BadInputError, match=r"no such preset or file; presets: ascend310, .*tiny"):
        load_machine(name)


def test_values_that_differ_stand_behind_a_colon(tmp_path, tiny):
    edge, other = load_machine("edge"), load_machine("edge:cores=4,ddr.bytes_per_cycle=128")
    assert (other.name, other.cores, other.ddr.bytes_per_cycle) == ("edge-cores-4-ddr.bytes_per_cycle-128", 4, 128)
    expected = edge.model_dump() | {"cores": 4, "name": other.name, "ddr": edge.ddr.model_dump() | {"bytes_per_cycle": 128}}
    assert other == Machine.model_validate(expected)
    assert other.digest == Machine.model_validate(expected).digest != edge.digest
    path = tmp_path / "m:cores=2.yaml"
    path.write_text(yaml.safe_dump(tiny))
    assert load_machine(str(path)).name == "tiny", "a file of that name is a file"
    assert load_machine("tpu-like:matrix.pipelined=false,contention.none=0.75,name=mine").name == "mine"


def test_wider_port_for_more_cores_or_wider_dmas():
    """What nobody could draw is refused, by name of what is missing; what is given is meant."""

    def rates(text: str) -> tuple[Fraction, Fraction]:
        machine = load_machine(text)
        return machine.path_bytes_per_cycle(Engine.MTE2), machine.path_bytes_per_cycle(Engine.MTE3)

    assert rates("edge:ddr.bytes_per_cycle=256,paths.DDR->*.bytes_per_cycle=256") == (256, 64)
    assert rates("edge:paths.DDR->L1.bytes_per_cycle=64,ddr.bytes_per_cycle=256") == (64, 64)
    assert rates("edge:ddr.bytes_per_cycle=256,paths.*DDR*.bytes_per_cycle=12.8") == (Fraction(64, 5), Fraction(64, 5))
    assert rates("edge:ddr.bytes_per_cycle=256,dma.store_ports=4") == (64, 64)
    assert rates("edge:ddr.bytes_per_cycle=256,cores=4") == rates("edge:ddr.bytes_per_cycle=32") == (64, 64)


def test_one_dma_port_of_each_is_not_written():
    edge, several = load_machine("edge"), load_machine("edge:dma.load_ports=2,name=edge")
    assert "dma" not in edge.model_dump()
    assert several.digest != edge.digest
    assert Machine.model_validate(several.model_dump()).dma_ports(Engine.MTE2) == 2
    assert several.dma_bytes_per_cycle(Engine.MTE2) == 2 * several.dma_bytes_per_cycle(Engine.MTE3) == 128


def test_a_level_more(tmp_path, tiny):
    levels = load_machine("edge:contention.half=0.5,contention.a.b=0.125,contention.none=0.75").contention
    assert {name: level.share for name, level in levels.items()} == {"none": 0.75, "slight": 0.5, "severe": 0.25, "half": 0.5, "a.b": 0.125}
    late = load_machine("edge:contention.half=0.5,contention.half.latency_cycles=7").contention["half"]
    assert late == Level(share=0.5, latency_cycles=7)
    assert load_machine("edge:contention.least=0.0000152587890625").contention["least"].share_units == 1
    tiny["contention"] = {"none": 1.0, "least": 2**-16}
    assert load(tmp_path, tiny).contention["least"].share_units == 1


def test_a_level_is_a_share_and_a_latency(tmp_path, tiny):
    tiny["contention"] = {"none": 1, "far": {"share": 1.0, "latency_cycles": 7}, "near": {"share": 0.5}}
    machine = load(tmp_path, tiny)
    assert machine.contention == {"none": NO_CONTENTION, "far": Level(share=1, latency_cycles=7), "near": Level(share=0.5)}
    assert machine.model_dump(mode="json")["contention"]["none"] == {"share": 1.0, "latency_cycles": 0}
    assert Machine.model_validate_json(machine.model_dump_json()) == machine
    severe = load_machine("edge:contention.severe.latency_cycles=500,contention.severe.share=0.3").contention["severe"]
    assert severe == Level(share=0.3, latency_cycles=500)
    assert str(severe) == "0.3 +500"


def test_load_latency_lies_between_those_of_levels(tmp_path, tiny):
    half, quarter = {"share": 0.5, "latency_cycles": 30}, {"share": 0.25, "latency_cycles": 90}
    tiny["contention"] = {"none": 1.0, "slight": half, "severe": quarter, "also": {"share": 0.25, "latency_cycles": 95}}
    machine = load(tmp_path, tiny)
    assert [machine.load_latency(share) for share in (65536, 32768, 16384)] == [0, 30, 90]
    assert machine.load_latency(21845) == 60  # S (1 - s) / (2 s) with S = 60, on either side of a half
    assert machine.load_latency(43691) == 14  # 15, rounded down
    assert machine.load_latency(1) == 90
    del tiny["contention"]["none"]
    assert load(tmp_path, tiny).load_latency(65536) == 30


def test_rates_are_the_decimal_numbers_of_the_file(tmp_path, tiny):
    tiny["ddr"]["bytes_per_cycle"] = 12.8
    machine = load(tmp_path, tiny)
    assert machine.ddr.deliverable == machine.ddr.turned == Fraction(64, 5)
    assert port_units(machine, 65536) == 838860
    assert load_machine("tiny:ddr.bytes_per_cycle=32.0").model_dump()["ddr"] == load_machine("tiny").model_dump()["ddr"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "edge:ddr.bytes_per_cycle=256",
            r"ddr\.bytes_per_cycle: 256; reads or writes of all cores \(1\) draw at most 64; accepted: up to 64, or more cores or DMA"
            r" ports, or paths\.\*DDR\*\.bytes_per_cycle as well$",
        ),
        ("ascend310:cores=4,ddr.bytes_per_cycle=269", r"draw at most 268"),
        ("edge:contention.gone=0.00001", r"contention\.gone\.share: .* from 1/65536, .* to 1 \(got 1e-05\)"),
        ("edge:contention.half=nan", r"contention\.half\.share: .* from 1/65536, .* to 1 \(got nan\)"),
        ("edge:contention.baseline=0.5", r"baseline is no name for a level"),
        ("edge:contention.robust=0.5", r"robust is no name for a level"),
        ("edge:contention.=0.5", r"contention\."),
        ("edge:", r"machine 'edge:': ''; expected KEY=VALUE"),
        ("edge:cores", r"'cores'; expected KEY=VALUE"),
        ("edge:core=4", r"'core=4'; expected KEY=VALUE"),
        ("edge:ddr=4", r"ddr: "),
        ("edge:paths.0.bytes_per_cycle=4", r"expected KEY=VALUE.*paths\.SOURCE->DESTINATION\.KEY"),
        ("edge:paths.DDR->L0C.bytes_per_cycle=4", r"expected KEY=VALUE"),
        ("edge:paths.DDR->L1.speed=4", r"expected KEY=VALUE"),
        ("edge:paths.DDR->L1.bytes_per_cycle=0", r"paths\.0\.bytes_per_cycle: .*got 0"),
        ("edge:ddr.rate=effective", r"ddr: dram: lpddr5; an effective rate has none"),
        ("edge:ddr.dram=null", r"ddr: rate: pins needs dram"),
        ("edge:contention.severe.latency_cycles=-4", r"contention\.severe\.latency_cycles: .*got -4"),
        ("edge:dma.load_ports=9,ddr.outstanding=9", r"dma\.load_ports: .*8 .*got 9"),
        ("edge:dma.store_ports=0", r"dma\.store_ports: .*got 0"),
        ("edge:dma.store_ports=4,ddr.outstanding=3", r"dma\.store_ports: 4; accepted: up to ddr\.outstanding, 3"),
        ("edge:dma.ports=2", r"'dma.ports=2'; expected KEY=VALUE"),
        ("edge:contention.severe.cores=2", r"cores=2': contention\.severe\.cores: 2; accepted: up to 1, what the machine has$"),
        (
            "edge:contention.severe.l1_byte=1",
            r"'contention\.severe\.l1_byte=1'; expected.*contention\.LEVEL\.KEY \(share, latency_cycles, l1_bytes",
        ),
        ("edge:contention.half.cores=1", r"'contention\.half\.cores=1'; expected"),
        ("edge:cores=many", r"cores: .*got 'many'"),
        ("edge:cores=0", r"cores: .*got 0"),
        ("edge:name=No Name", r"name: "),
        ("nowhere:cores=2", r"machine 'nowhere': no such preset or file"),
    ],
)
def test_a_wrong_value_behind_a_colon_is_named(text, message):
    with pytest.raises(BadInputError, match=message) as caught:
        load_machine(text)
    assert "\n" not in str(caught.value)
