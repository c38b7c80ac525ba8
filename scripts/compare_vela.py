"""DDR traffic of quantised networks, beside that of Arm's Vela for the same NPU.

    python scripts/compare_vela.py --venv FOLDER [--machines NAME,...] [--networks NAME,...] [--candidates N] [--json]
    python scripts/compare_vela.py --streams [--networks NAME,...] [--json]

Vela and TensorFlow (for .tflite files of int8) are installed from the package registry into FOLDER.  Vela compiles for the accelerator
with a dedicated SRAM (`CONFIGS`), in two of its configurations of DRAM, each at a share of its bandwidth, with `--optimise Performance`
and `Size`; the best of the four counts.  Its traffic is what its own report says it reads and writes in DRAM: feature maps as they are
stored, padding with them, and weights as often as it reads them, at their size before its lossless coding, which no machine here has.

Ours is a search on the preset of that accelerator, with a level of next to no bandwidth beside its own: the champion there moves the
least, and is what counts (`tilefarm_traffic`).  `champion` is what the fastest program at that share moves, which spends spare bandwidth.
All that is moved counts, padding too; `stream` is the size of the program beside it.  `once` is weights, inputs and outputs of the model
without padding, once.  Both sides take and give integers.

The goal: half of Vela's bytes in the geometric mean, and of none above 0.65, unless within 1.05 of `once`.  Exit code 1 where it is
missed.  Not part of CI: it needs the registry.

`--streams` compares command streams of Ethos-U65 instead, by words (`scripts/compare_streams.py`), and needs the extras of streams.
"""

from __future__ import annotations

import configparser
import csv
import importlib.util
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any, NamedTuple

import onnx
import typer
from onnx import ModelProto

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tuner  # noqa: E402
from compiler.model import ModelSpec, lower_model  # noqa: E402
from compiler.pipeline import Compiler  # noqa: E402
from compiler.plan.plan import Infeasible  # noqa: E402
from scripts.integer_borders import with_integer_borders  # noqa: E402
from scripts.traffic import Traffic, stream_bytes, traffic  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from tuner.zoo.load import load_network  # noqa: E402

PACKAGES = ("ethos-u-vela==5.2.0", "tensorflow-cpu==2.21.0")
NETWORKS = ("light:squeezenet", "made:mobilenet_v1", "made:mobilenet_v2")
TRAFFIC, HARDLY_ANY = "traffic", 1 / 256
GEOMETRIC, WORST, OF_ONCE = 0.5, 0.65, 1.05


class Config(NamedTuple):
    """Configuration of Vela for a preset.  systems: sections of its Arm/vela.ini, first that of the preset's file.  memory: its memory
    mode.
    """

    systems: tuple[str, ...]
    memory: str


CONFIGS = {
    "ethos-u65-512": Config(("Ethos_U65_Client_Server", "Ethos_U65_High_End"), "Dedicated_Sram_384KB"),
    "ethos-u85-1024": Config(("Ethos_U85_SYS_DRAM_Mid", "Ethos_U85_SYS_DRAM_High"), "Dedicated_Sram_512KB"),
}
OPTIMISE = ("Performance", "Size")


class Moved(NamedTuple):
    """DRAM bytes in Vela's report.  weights: as read, coded.  original, coded: all weights of the network."""

    settings: str
    feature_maps: int
    weights: int
    original: int
    coded: int

    @property
    def total(self) -> int:
        """Bytes with uncoded weights."""
        return self.feature_maps + round(self.weights * self.original / self.coded)


def install(folder: Path) -> Path:
    """The environment's python; installs nothing where both packages are there already."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    check = "from importlib.metadata import version; version('ethos-u-vela'), version('tensorflow-cpu')"
    if subprocess.run([python, "-c", check], capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def layer_table(model: ModelProto) -> dict[str, Any]:
    """Layers of a float network without weights, the input of `scripts/tflite_of.py`."""
    shapes = {item.name: _dimensions(item) for item in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    constants = {item.name for item in model.graph.initializer}
    (image,) = [item for item in model.graph.input if item.name not in constants]
    n, c, h, w = shapes[image.name]
    layer_names, layers = {image.name: ""}, list[dict[str, Any]]()
    for node in model.graph.node:
        layer = _layer(node, shapes)
        inputs = [layer_names[name] for name in node.input if name in layer_names]
        if layer is None:
            if inputs:
                layer_names[node.output[0]] = inputs[0]
            continue
        layer_names[node.output[0]] = node.output[0]
        layers.append(layer | {"inputs": inputs, "output": node.output[0]})
    return {"input": [n, h, w, c], "layers": layers}


def _dimensions(item: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in item.type.tensor_type.shape.dim)


_SAME_VALUES = {"BatchNormalization", "Constant", "Dropout", "Flatten", "Identity", "Reshape"}  # or folded, as the converter would
_ALONE = {"Relu": "relu", "Clip": "relu6", "GlobalAveragePool": "mean", "Concat": "concat", "Add": "add", "Softmax": "softmax"}


def _layer(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any] | None:
    """Layer of a node; None if it computes nothing."""
    if node.op_type in _SAME_VALUES:
        return None
    if node.op_type in _ALONE:
        return {"kind": _ALONE[node.op_type]}
    if node.op_type == "Gemm":
        return {"kind": "dense", "channels": shapes[node.output[0]][1]}
    values = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    if node.op_type not in ("Conv", "MaxPool"):
        raise SystemExit(f"{node.op_type}: no layer of tflite_of.py; accepted: networks of convolutions, pools, sums and concatenations")
    stride = list(values.get("strides", [1, 1]))
    rows, out = shapes[node.input[0]][2], shapes[node.output[0]]
    padding = "SAME" if out[2] == -(-rows // stride[0]) else "VALID"
    window = {"kernel": list(values["kernel_shape"]), "stride": stride, "padding": padding}
    if node.op_type == "MaxPool":
        return {"kind": "max_pool"} | window
    return {"kind": "conv", "channels": out[1], "groups": values.get("group", 1)} | window


def convert_to_tflite(python: Path, name: str, folder: Path) -> Path:
    """The network's file, made once in a folder."""
    out = folder / f"{name.partition(':')[2]}.tflite"
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        layers = out.with_suffix(".json")
        model = onnx.shape_inference.infer_shapes(load_network(name))
        layers.write_text(json.dumps(layer_table(model)), encoding="utf-8")
        process = subprocess.run([python, ROOT / "scripts" / "tflite_of.py", layers, out], capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(f"tensorflow failed on {name}:\n{process.stderr[-2000:]}")
    return out


def scaled(ini: str, system: str, share: float) -> str:
    """Vela's configurations, with a share of the DRAM's bandwidth in one of them."""
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(ini)
    section = parser[f"System_Config.{system}"]
    section["Dram_clock_scale"] = str(float(section["Dram_clock_scale"]) * share)
    lines = [f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in parser[name].items()) for name in parser.sections()]
    return "\n".join(lines)


def moved_bytes(rows: list[dict[str, str]], settings: str) -> Moved:
    """Moved bytes in a row of Vela's summary."""
    (row,) = rows
    feature_maps = sum(int(float(row[f"dram_feature_map_{way}_bytes"])) for way in ("read", "write"))
    weights = sum(int(float(row[f"dram_weight_{way}_bytes"])) for way in ("read", "write"))
    return Moved(settings, feature_maps, weights, int(float(row["total_original_weights"])), int(float(row["total_npu_encoded_weights"])))


def vela(python: Path, model: Path, accelerator: str, share: float) -> Moved:
    """Traffic of Vela with the better of its settings."""
    config = CONFIGS[accelerator]
    locate = "import ethosu.vela as v; print(v.__path__[0])"
    package = subprocess.run([python, "-c", locate], capture_output=True, text=True, check=True).stdout.split()[-1]
    ini = (Path(package).parent / "config_files" / "Arm" / "vela.ini").read_text(encoding="utf-8")
    results = []
    with tempfile.TemporaryDirectory(prefix="tilefarm-vela-") as name:
        folder = Path(name)
        for system, optimise in product(config.systems, OPTIMISE):
            out = folder / f"{system}-{optimise}"
            out.mkdir()
            (out / "vela.ini").write_text(scaled(ini, system, share), encoding="utf-8")
            words = ["--accelerator-config", accelerator, "--config", out / "vela.ini", "--system-config", system]
            words += ["--memory-mode", config.memory, "--optimise", optimise, "--output-dir", out, model]
            process = subprocess.run([python.parent / "vela", *words], capture_output=True, text=True, check=False)
            reports = list(out.glob("*_summary_*.csv"))
            if process.returncode or len(reports) != 1:
                raise SystemExit(f"vela failed on {model.name}:\n{process.stdout[-2000:]}{process.stderr[-2000:]}")
            with reports[0].open(newline="", encoding="utf-8") as file:
                results.append(moved_bytes(list(csv.DictReader(file)), f"{optimise}, {system}"))
    return min(results, key=lambda moved: moved.total)


def tilefarm_traffic(name: str, machine: Machine, candidates: int) -> dict[str, tuple[Traffic, int]]:
    """Level of the machine, or `TRAFFIC` -> traffic of its champion, and bytes of its stream."""
    levels = {level: grant.model_dump() for level, grant in machine.contention.items()} | {TRAFFIC: {"share": HARDLY_ANY}}
    source = ModelSpec.named(Path(name), Machine.model_validate(machine.model_dump() | {"contention": levels}), "float16", {}, None)
    opened = lower_model(source, with_integer_borders(load_network(f"{name},quantised=qdq")), name)
    result = tuner.Search(opened.target_graph, candidates=candidates).run()
    compiler, traffic_by_level = Compiler(result.target_graph), dict[str, tuple[Traffic, int]]()
    for level in result.levels:
        program = compiler.compile(result.plan(level))
        assert not isinstance(program, Infeasible), program
        traffic_by_level[level] = traffic(result.target_graph, program), stream_bytes(program)
    return traffic_by_level


def compare(python: Path, folder: Path, accelerator: str, name: str, candidates: int) -> Iterator[dict[str, Any]]:
    """A row per level of the preset."""
    machine, model = load_machine(accelerator), convert_to_tflite(python, name, folder)
    traffic_by_level = tilefarm_traffic(name, machine, candidates)
    least_traffic, stream = min(traffic_by_level.values(), key=lambda entry: entry[0].total)
    for level in machine.contention:
        share = float(machine.contention[level].share)
        reference = vela(python, model, accelerator, share)
        yield {
            "machine": accelerator, "network": name.partition(":")[2], "share": share,
            "settings": reference.settings, "vela": reference.total,
            "vela_weights": reference.total - reference.feature_maps, "champion": traffic_by_level[level][0].total,
            "ours": least_traffic.total, "once": least_traffic.once,
            "padding": least_traffic.zeros + least_traffic.lanes, "again": least_traffic.weights_again + least_traffic.tensors_again,
            "spills": least_traffic.spills, "stream": stream,
        }  # fmt: skip


def reached(rows: list[dict[str, Any]]) -> bool:
    """Whether the goal of the module's docstring is reached."""
    ratios = [row["ours"] / row["vela"] for row in rows]
    within_goal = [row["ours"] <= OF_ONCE * row["once"] for row in rows]
    return geometric_mean(ratios) <= GEOMETRIC and all(ratio <= WORST or close for ratio, close in zip(ratios, within_goal, strict=True))


def main(
    folder: Annotated[
        Path | None, typer.Option("--venv", metavar="FOLDER", help="Where Vela and TensorFlow are, or are to be installed.")
    ] = None,
    machines: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(CONFIGS)}.")] = ",".join(CONFIGS),
    networks: Annotated[
        str, typer.Option(help="Comma-separated float networks: light:NAME or made:NAME; those of tflite_networks.py with --streams.")
    ] = "",
    candidates: Annotated[int, typer.Option(min=1, help="Measured programs of each search.")] = 96,
    streams: Annotated[bool, typer.Option("--streams", help="Compare command streams by the executor, at shares 1, 1/2 and 1/4.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """DDR traffic of quantised networks, beside that of Arm's Vela for the same NPU; exit code 1 where the goal is missed."""
    if streams:
        raise typer.Exit(_compare_streams([name for name in networks.split(",") if name], as_json))
    if folder is None:
        raise typer.BadParameter("expected --venv FOLDER, or --streams")
    if unknown := [name for name in machines.split(",") if name not in CONFIGS]:
        raise typer.BadParameter(f"{unknown[0]}: accepted: {', '.join(CONFIGS)}")
    python, rows = install(folder), list[dict[str, Any]]()
    if not as_json:
        print(f"{', '.join(PACKAGES)}; {'; '.join(f'{name}: {config.memory}' for name, config in CONFIGS.items())}\n")
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * 4}{'---:|' * (len(COLUMNS) - 4)}")
    for accelerator in machines.split(","):
        for name in networks.split(",") if networks else NETWORKS:
            for row in compare(python, folder / "networks", accelerator, name, candidates):
                rows.append(row)
                if not as_json:
                    print(describe_row(row), flush=True)
    if as_json:
        print(json.dumps(rows))
    sys.stderr.write(f"geometric mean: {geometric_mean(row['ours'] / row['vela'] for row in rows):.3f} of Vela's bytes\n")
    raise typer.Exit(0 if reached(rows) else 1)


def _compare_streams(networks: list[str], as_json: bool) -> int:
    """The exit code: 1 where a goal is missed."""
    if missing := [name for name in ("ethosu", "ai_edge_litert") if importlib.util.find_spec(name) is None]:
        raise typer.BadParameter(f"no package {' and '.join(missing)}: expected the extras ethos-u and litert")
    from scripts.compare_streams import compare_networks, goals_reached, table_lines
    from scripts.tflite_networks import NETWORKS as FILES

    if unknown := [name for name in networks if name not in FILES]:
        raise typer.BadParameter(f"--networks {unknown[0]}: expected {', '.join(FILES)}")
    rows = list(compare_networks(networks))
    print(json.dumps(rows) if as_json else "\n".join(table_lines(rows)))
    return 0 if goals_reached(rows) else 1


COLUMNS = (
    "machine",
    "network",
    "share",
    "settings",
    "vela",
    "vela_weights",
    "champion",
    "ours",
    "over",
    "once",
    "padding",
    "again",
    "spills",
    "stream",
)


def describe_row(row: dict[str, Any]) -> str:
    cells = row | {"over": f"{row['ours'] / row['vela']:.3f}"}
    return f"| {' | '.join(f'{cells[name]:,}' if isinstance(cells[name], int) else str(cells[name]) for name in COLUMNS)} |"


if __name__ == "__main__":
    typer.run(main)
