"""Write the networks of `tuner.zoo.builders` as ONNX files, their weights drawn from a seed.

    python scripts/make_models.py --out models --networks inception_v3,vit_b16,mobilenet_v2-small --check

A name may carry options, as in `tilefarm tune made:vit_b16,layers=2`; here `;` stands between them (`vit_b16;layers=2`), because `,` stands
between networks.  --check runs each file once on onnxruntime.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulator.npu.errors import TilefarmError
from tuner.zoo.builders import NETWORKS
from tuner.zoo.load import load_network
from tuner.zoo.names import MADE


def main(
    out: Annotated[Path, typer.Option(help="Folder; files are called NAME.onnx.")],
    networks: Annotated[str, typer.Option(help="Comma-separated names.")] = ",".join(NETWORKS),
    layers: Annotated[int | None, typer.Option(min=1, help="Of ViT and BERT; 12 unless given.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights.")] = 0,
    check: Annotated[bool, typer.Option("--check", help="Run each on onnxruntime: values finite and within float16.")] = False,
) -> None:
    """Write the networks that `made:NAME` builds as ONNX files, weights drawn from a seed."""
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    typer.echo(f"{'network':32} {'nodes':>6} {'MB':>8}" + (f" {'largest':>10} {'logits std':>10}" if check else ""))
    for network_name in networks.split(","):
        name = network_name.replace(";", ",")
        if layers is not None and name.startswith(("vit", "bert")):
            name += f",layers={layers}"
        try:
            model = load_network(Path(MADE + name), random_weights=seed)
        except TilefarmError as error:
            sys.stderr.write(f"{error}\n")
            raise SystemExit(2) from None
        path = out / f"{name}.onnx"
        onnx.save(model, path)
        onnx.checker.check_model(str(path), full_check=True)
        line = f"{name:32} {len(model.graph.node):6} {path.stat().st_size / 1e6:8.1f}"
        if check:
            largest, spread = run_once(path, seed)
            failed += not largest < float(np.finfo(np.float16).max)  # NaN is not
            line += f" {largest:10.2f} {spread:10.3f}"
        typer.echo(line)
    raise SystemExit(int(failed > 0))


def run_once(path: Path, seed: int) -> tuple[float, float]:
    """Run a model once on standard normal inputs: largest magnitude over all tensors, and standard deviation of the last output; NaN if a
    value is not finite.
    """
    import onnxruntime

    model = onnx.load(path)
    outputs = {item.name for item in model.graph.output}
    computed = [name for node in model.graph.node for name in node.output if name not in outputs]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    feeds = {
        item.name: rng.integers(0, 100, item.shape) if item.type == "tensor(int64)" else rng.standard_normal(item.shape, dtype=np.float32)
        for item in session.get_inputs()
    }
    names = [item.name for item in session.get_outputs()]
    values = dict(zip(names, session.run(names, feeds), strict=True))
    last = [name for name in names if name in outputs][-1]
    return float(np.max([np.abs(value).max() for value in values.values() if value.dtype.kind == "f"])), float(values[last].std())


if __name__ == "__main__":
    typer.run(main)
