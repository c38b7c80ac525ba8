"""Files with streams: a `.tflite` file that has them as custom operators, and raw words."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.ethosu.driver_file import driver_payload, write_raw, write_tflite
from compiler.ethosu.level_streams import LevelStreams
from compiler.ethosu.network_macs import stream_share
from compiler.ethosu.network_parts import CompiledNetwork, compile_network
from compiler.ethosu.segments import single_operators
from compiler.frontend.tflite.file_schema import (
    BUFFER_DATA,
    CUSTOM,
    IDENTIFIER,
    METADATA_BUFFER,
    METADATA_NAME,
    Code,
    OperatorField,
    SubGraph,
    TensorField,
)
from compiler.frontend.tflite.file_schema import Model as ModelField
from compiler.frontend.tflite.flatbuffer import FlatTable, Scalar, read_root, write_root
from compiler.frontend.tflite.network import read_network
from simulator.ethosu.command_words import instructions
from simulator.ethosu.driver_payload import read_payload
from simulator.ethosu.executor import execute
from simulator.ethosu.memory_regions import Region
from simulator.ethosu.raw_streams import RawStream, read_raw_file, write_raw_file
from simulator.ethosu.stream_error import StreamError
from simulator.npu.errors import UnsupportedError
from tests.compiler.ethosu.models import Model, model


def compiled(name: str) -> CompiledNetwork:
    network = read_network(model(name).data)
    return compile_network(network, single_operators(len(network.operators)), 384 << 10)


class File:
    """A written file, by the reader of fields."""

    def __init__(self, data: bytes) -> None:
        self.root = read_root(data, IDENTIFIER)
        (self.graph,) = self.root.tables(ModelField.SUBGRAPHS)
        self.buffers = self.root.tables(ModelField.BUFFERS)
        self.tensors = self.graph.tables(SubGraph.TENSORS)
        self.operators = self.graph.tables(SubGraph.OPERATORS)

    def content(self, tensor: int) -> bytes:
        return self.buffers[self.tensors[tensor].number(TensorField.BUFFER, "I")].array(BUFFER_DATA, "u1").tobytes()

    def size(self, tensor: int) -> int:
        return int(np.prod(self.tensors[tensor].array(TensorField.SHAPE, "<i4")))

    def kind(self, operator: FlatTable) -> tuple[int, str]:
        code = self.root.tables(ModelField.CODES)[operator.number(OperatorField.CODE, "I")]
        return code.number(Code.BUILTIN, "i"), code.text(Code.CUSTOM)

    def offsets(self) -> list[int]:
        (entry,) = self.root.tables(ModelField.METADATA)
        assert entry.text(METADATA_NAME) == "OfflineMemoryAllocation"
        words = self.buffers[entry.number(METADATA_BUFFER, "I")].array(BUFFER_DATA, "u1").view("<i4")
        assert words[2] == len(self.tensors) == len(words) - 3
        return words[3:].tolist()


@pytest.mark.parametrize("name", ["table_activations", "CONV_2D", "ADD", "MAX_POOL_2D"])
def test_a_file_has_what_its_operator_needs(name):
    """The stream of the file alone, on memory as its operator describes it."""
    source, file = model(name), File(write_tflite(compiled(name)))
    (operator,) = file.operators
    assert file.kind(operator) == (CUSTOM, "ethos-u")
    payload, constants, arena, fast, *inputs = operator.array(OperatorField.INPUTS, "<i4").tolist()
    outputs = operator.array(OperatorField.OUTPUTS, "<i4").tolist()
    assert inputs == file.graph.array(SubGraph.INPUTS, "<i4").tolist()
    assert outputs == file.graph.array(SubGraph.OUTPUTS, "<i4").tolist()
    read, offsets = read_payload(file.content(payload)), file.offsets()
    assert (read.macs, read.shared_buffer_bytes) == (256, 48 << 10)
    assert (offsets[arena], offsets[payload]) == (0, -1)
    dram = np.full(file.size(arena), 0x55, np.uint8)
    for tensor, value in zip(inputs, source.inputs, strict=True):
        dram[offsets[tensor] : offsets[tensor] + value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
    regions = {
        0: Region(np.frombuffer(file.content(constants), np.uint8), "dram", 1, False), 1: Region(dram, "dram", 1),
        2: Region(np.full(file.size(fast), 0xAA, np.uint8), "sram", 0),
    }  # fmt: skip
    execute(read.words, regions)
    for tensor, expected in zip(outputs, source.outputs, strict=True):
        np.testing.assert_array_equal(dram[offsets[tensor] : offsets[tensor] + expected.nbytes].view(np.int8), expected.ravel())


def test_an_operator_of_the_processor_stays():
    file = File(write_tflite(compiled("keyword_spotting")))
    assert [file.kind(operator) for operator in file.operators] == [(CUSTOM, "ethos-u"), (25, "")]
    options = file.operators[1].table(OperatorField.OPTIONS)
    assert options is not None
    assert options.number(0, "f") == 1.0
    logits = file.operators[1].array(OperatorField.INPUTS, "<i4").tolist()
    assert logits == [file.operators[0].array(OperatorField.OUTPUTS, "<i4")[-1]]


def test_a_compiled_file_is_no_model():
    with pytest.raises(UnsupportedError, match="a custom operator 'ethos-u': expected a file that no compiler has written"):
        read_network(write_tflite(compiled("CONV_2D")))


def test_a_payload_has_its_stream_at_16_bytes():
    words = tuple(range(1, 70_000))
    payload = driver_payload(words)
    assert read_payload(payload).words == words
    assert (len(payload) - 4 * len(words)) % 16 == 0


def raw_of(name: str) -> bytes:
    """Raw words of a model whose operators are by themselves, of one level."""
    return write_raw(LevelStreams((compiled(name),), {"none": 0}, {"none": 7}, ()))


def raw_stream(raw: bytes, source: Model, level: str = "none") -> tuple[RawStream, dict[int, Region]]:
    """The one stream of a level of a file of raw words, and memory with a model's inputs."""
    file = read_raw_file(raw)
    (stream,) = file.streams(level)
    dram = np.zeros(stream.arena, np.uint8)
    for port, value in zip(stream.inputs, source.inputs, strict=True):
        dram[port.offset : port.offset + port.size] = np.frombuffer(value.tobytes(), np.uint8)
    regions = {
        0: Region(file.constants[0], "dram", 1, False), 1: Region(dram, "dram", 1), 2: Region(np.zeros(stream.fast, np.uint8), "sram", 0),
    }  # fmt: skip
    return stream, regions


def run_raw(raw: bytes, source: Model, level: str = "none") -> list[np.ndarray]:
    """Outputs of the one stream of a level of a file of raw words."""
    stream, regions = raw_stream(raw, source, level)
    execute(stream.words, regions)
    return [regions[1].data[port.offset : port.offset + port.size].view(np.int8) for port in stream.outputs]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 1, "expected b'U65S', a file of raw words"), (1, 7, "version 7: expected 2"), (2, 0, "0 parts: expected 1 to 4096"),
        (3, 5000, "5000 variants: expected 1"), (4, 0, "0 levels: expected 1"), (5, 1 << 30, r"ends at byte \d+: expected"),
        (8, 1, "level b'none' of variant 1: expected a name in ASCII and a variant below 1"),
        (11, 0xFFFF, "expected a name in ASCII"),
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_refused(place, value, message):
    words = np.frombuffer(raw_of("CONV_2D"), "<u4").copy()
    words[place] = value
    with pytest.raises(StreamError, match=message):
        read_raw_file(words.tobytes())


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 6, "a stream of 6 bytes: expected a multiple of 4"), (1, 0, "an input or output up to byte .*: expected at most the arena's 0"),
        (3, 1 << 31, "inputs or outputs: expected at most"),
    ],
)  # fmt: skip
def test_a_header_of_another_shape_is_refused(place, value, message):
    raw = raw_of("CONV_2D")
    words = np.frombuffer(raw, "<u4").copy()
    header = 8 + 20 + len(read_raw_file(raw).constants[0]) // 4
    words[header + place] = value
    with pytest.raises(StreamError, match=message):
        read_raw_file(words.tobytes())


def test_a_cut_file_is_refused():
    raw = raw_of("ADD")
    assert write_raw_file(read_raw_file(raw)) == raw
    for size in np.random.default_rng(0).integers(4, len(raw) - 16, 30):
        with pytest.raises(StreamError, match="ends at byte"):
            read_raw_file(raw[:size])


def test_raw_words_run():
    source = model("table_activations")
    for output, expected in zip(run_raw(raw_of(source.name), source), source.outputs, strict=True):
        np.testing.assert_array_equal(output, expected.ravel())


def test_tables_are_read_as_they_were_written():
    fields = {0: Scalar("b", -3), 2: b"name", 3: np.arange(5, dtype="<i8"), 4: [{1: Scalar("f", 0.5)}, {}], 7: {0: Scalar("I", 7)}}
    root = read_root(write_root(fields, b"TEST"), b"TEST")
    assert (root.number(0, "b"), root.number(1, "b", 5), root.text(2)) == (-3, 5, "name")
    assert root.array(3, "<i8").tolist() == [0, 1, 2, 3, 4]
    assert [table.number(1, "f") for table in root.tables(4)] == [0.5, 0]
    inner = root.table(7)
    assert inner is not None
    assert inner.number(0, "I") == 7
    assert root.table(8) is None


@pytest.mark.slow
def test_litert_reads_the_file_up_to_the_stream():
    """The interpreter has the inputs of the model, and no kernel for the operator, which is the driver's."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    source = model("keyword_spotting")
    read = interpreter.Interpreter(model_content=write_tflite(compiled(source.name)))
    assert [tuple(detail["shape"]) for detail in read.get_input_details()] == [value.shape for value in source.inputs]
    assert [tuple(detail["shape"]) for detail in read.get_output_details()] == [value.shape for value in source.outputs]
    with pytest.raises(RuntimeError, match="unresolved custom op: ethos-u"):
        read.allocate_tensors()


@pytest.mark.slow
def test_vela_reads_the_file():
    """Its custom operator is where Vela's are; and all of its commands are in Vela's lists."""
    pytest.importorskip("ai_edge_litert")
    registers = pytest.importorskip("ethosu.vela.ethos_u55_regs.ethos_u55_regs")
    from scripts.vela_streams import read_stream

    source = model("table_activations")
    stream = read_stream(write_tflite(compiled(source.name)))
    outputs, _ = stream.run(source.inputs)
    for output, expected in zip(outputs, source.outputs, strict=True):
        np.testing.assert_array_equal(output, expected)
    known = {1: {entry.value for entry in registers.cmd0}, 2: {entry.value for entry in registers.cmd1}}
    for instruction in instructions(stream.words):
        assert instruction.command.opcode in known[instruction.command.words], instruction.command.name


@pytest.mark.parametrize("name", ["keyword_spotting", "table_activations", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"])
def test_streams_have_the_multiply_accumulates(name):
    """As the executor counts them; a softmax has none."""
    macs = 0
    network = compiled(name)
    for part in network.parts:
        regions = {
            0: Region(part.stream.constants, "dram", 1, False), 1: Region(np.zeros(network.arena, np.uint8), "dram", 1),
            2: Region(np.zeros(part.stream.fast, np.uint8), "sram", 0),
        }  # fmt: skip
        macs += execute(part.stream.words, regions).macs
    assert stream_share(network) == (macs, macs)
