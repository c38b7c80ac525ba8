"""Command `tilefarm doctor`: check that this computer has everything that a run needs."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.own_folders import private_folder, user_cache
from simulator.terminal import print_line
from tuner.cli.options import Address, Json
from tuner.cli.text import print_json
from tuner.platform.cpus import usable_cpus
from tuner.platform.ray_files import provide_token, ray_folder, token_path

app = new_app()

_LIBRARIES = ("numpy", "numba", "onnx", "onnxruntime", "optuna", "pandas", "pyarrow", "pydantic", "ray", "typer", "xgboost")
RATE_S = 3600.0


class CheckResult(NamedTuple):
    """Finding of one check: a line of text, and values for programs.  state: `ok`, `FAILED`, or `unknown` where the check could not
    run."""

    detail: str
    values: Mapping[str, Any] = MappingProxyType({})
    state: str = "ok"


@app.command()
def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN|FILE.onnx]",
            help="A run folder: also how fast its log grows.  A compiled file: also whether its values are right.",
        ),
    ] = None,
    address: Address = None,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Also compile, run and check a convolution: seconds, a minute where kernels are compiled first."),
    ] = False,
    as_json: Json = False,
) -> int:
    checks: list[tuple[str, Callable[[], CheckResult]]] = [
        ("python", _python),
        ("libraries", _libraries),
        ("machines", _machines),
        ("plug-ins", _plugins),
        ("temporary folder", lambda: _disk(private_folder().parent)),
        ("kernel cache", _kernel_cache),
        ("ray's folders", _ray_folders),
        ("ray", lambda: _ray(address)),
    ]
    if whole:
        checks.append(("compile, run, check", _whole_way))
    if run is not None and run.is_file():
        checks += [("ports of FILE", lambda: _ports(run)), ("values of FILE", lambda: _values(run))]
    elif run is not None and (run / "memory.json").is_file():
        raise BadInputError(f"{run}: a bundle has no model to be held against; expected the compiled ONNX file, or the run, that it is of")
    elif run is not None:
        checks += [("disk of RUN", lambda: _disk(run)), ("log of RUN", lambda: _log(run))]
    rows = []
    width = max(len(name) for name, _ in checks)
    for name, check in checks:
        try:
            check_result = check()
        except (TilefarmError, OSError, ImportError) as error:
            check_result = CheckResult(" ".join(str(error).split()), state="FAILED")
        rows.append((name, check_result))
        if not as_json:  # line by line: the last checks are slow, and a hanging check is visible as the missing line
            print_line(f"{name.ljust(width)}  {check_result.state.ljust(7)}  {check_result.detail}")
            sys.stdout.flush()
    failed = any(check_result.state == "FAILED" for _, check_result in rows)
    if as_json:
        reports = [{"name": name, "state": entry.state, "detail": entry.detail, "values": dict(entry.values)} for name, entry in rows]
        print_json({"ok": not failed, "checks": reports})
    return int(failed)


def _python() -> CheckResult:
    cpus, computer = usable_cpus(), len(os.sched_getaffinity(0))
    quota = f", of {computer} by the quota of a control group" if cpus < computer else ""
    text = f"{platform.python_version()} on {platform.machine()}, {cpus} CPUs{quota}"
    return CheckResult(text, {"version": platform.python_version(), "executable": sys.executable, "cpus": cpus})


def _libraries() -> CheckResult:
    versions, missing = {}, []
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise TilefarmError(f"not installed: {', '.join(missing)} (python {sys.executable})")
    return CheckResult(", ".join(f"{name} {number}" for name, number in versions.items()), versions)


def _machines() -> CheckResult:
    from simulator.npu.machine_file import load_machine, preset_names

    names = [load_machine(name).name for name in preset_names()]
    return CheckResult(", ".join(names), {"names": names})


def _plugins() -> CheckResult:
    """Plug-ins of installed packages, by entry point; modules named directly belong only to their run."""
    from tuner.plugins import KINDS, find, offered_names

    plugins = [find(kind, name) for kind in KINDS for name in offered_names(kind)]
    rows = [{"kind": f.plugin.kind, "name": f.plugin.name, "version": f.plugin.version, "from": f.where} for f in plugins]
    built_in = {kind.name: list(kind.built_in) for kind in KINDS}
    text = "; ".join(f"{row['kind']} {row['name']} {row['version']} ({row['from']})" for row in rows) or "none installed"
    included = ", ".join(f"{kind} {', '.join(names)}" for kind, names in built_in.items())
    return CheckResult(f"{text}; built in: {included}", {"plugins": rows, "built_in": built_in})


def _disk(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    return CheckResult(f"{folder}, {free / 1e9:,.1f} GB free", {"path": str(folder), "free_bytes": free})


def _kernel_cache() -> CheckResult:
    """Sizes of the kernel caches of this version and of other versions, which are removed after a month."""
    from simulator.kernel_cache import own_folder

    folder = own_folder()
    own_bytes, other_bytes = _bytes_below(folder), sum(_bytes_below(cache) for cache in folder.parent.glob("kernels-*") if cache != folder)
    state = f"{own_bytes / 1e6:,.1f} MB" if own_bytes else "empty, the first run compiles for most of a minute"
    if folder.parent.name == f"tilefarm-{os.getuid()}":
        state += f"; {user_cache() or 'the cache of a user without a home'} cannot be written"
    text = f"{folder}, {state}" + (f"; {other_bytes / 1e6:,.1f} MB of other versions" if other_bytes else "")
    return CheckResult(text, {"path": str(folder), "bytes": own_bytes, "other_bytes": other_bytes})


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _ray_folders() -> CheckResult:
    """Folders of a Ray cluster that `tune` starts."""
    session = ray_folder()
    text = f"{session}; token in {'the environment' if provide_token() else token_path()}"
    return CheckResult(text, {"session": str(session)})


def _ray(address: str | None) -> CheckResult:
    from tuner.platform.ray_info import ray_facts

    try:
        facts = ray_facts(address)
    except BadInputError as error:
        if address is not None or "RAY_ADDRESS" in os.environ:
            raise
        # no cluster was named: one that hangs, starts or stops is no obstacle
        return CheckResult(f"one runs here, but: {error}; `tune` starts one of its own for as long as it runs", {"address": None})
    if facts is None:
        return CheckResult("none is running here; `tune` starts one on this computer for as long as it runs", {"address": None})
    nodes = "; ".join(
        f"{node.name} {node.cpus} CPUs{''.join(f', {amount:g} {name}' for name, amount in node.resources.items())}" for node in facts.nodes
    )
    text = f"ray {facts.version} at {facts.address}, {facts.free_cpus} of {facts.cpus} CPUs free: {nodes}"
    return CheckResult(text, {**facts._asdict(), "nodes": [node._asdict() for node in facts.nodes]})


def _log(run: Path) -> CheckResult:
    """Completeness of a run's datasets, growth rate over the last hour of work, and days until the disk is full."""
    from tuner.log.dataset import DATASETS, read_dataset
    from tuner.platform.local_files import LocalPath
    from tuner.runs.list_runs import open_run

    open_run(run)
    parts = [(run / part.mark.file).stat() for name in DATASETS for part in read_dataset(LocalPath(run / name), name, ()).parts]
    size = sum(part.st_size for part in parts)
    last = max(part.st_mtime for part in parts)
    recent = [part for part in parts if last - part.st_mtime <= RATE_S]
    span_s = last - min(part.st_mtime for part in recent)
    values = {"bytes": size, "parts": len(parts), "bytes_per_day": None, "days_until_full": None}
    text = f"{size / 1e6:,.1f} MB in {len(parts)} parts"
    if span_s < 1.0:
        return CheckResult(f"{text}; too young to have a rate", values)
    per_day = sum(part.st_size for part in recent) / span_s * 86_400
    days = shutil.disk_usage(run).free / per_day
    text += f", {per_day / 1e6:,.1f} MB a day at the rate of its last {span_s / 60:,.0f} minutes; the disk takes {days:,.0f} days of that"
    return CheckResult(text, {**values, "bytes_per_day": round(per_day), "days_until_full": round(days, 1)})


def _ports(file: Path) -> CheckResult:
    from tuner.verify.ports import port_faults

    faults = port_faults(file)
    return CheckResult("in the model's order, of its shapes", {"faults": []}) if not faults else _touched(faults)


def _values(file: Path) -> CheckResult:
    """Check the values of every level with random inputs: files of earlier versions may have faults fixed since."""
    from simulator.onnx_container import has_body, read_file
    from simulator.session import InferenceSession
    from tuner.cli.checking import check_compiled
    from tuner.verify.check import random_feeds

    session = InferenceSession(file)
    if not session.compiled.pieces:
        return CheckResult("nothing of it runs on the NPU; onnxruntime runs the model as it is", {"faults": []})
    if not has_body(read_file(file), str(file)):
        return CheckResult("has no model to compare with (style epcontext); compile that with --check", {"faults": None}, "unknown")
    file_check = check_compiled(file, session, random_feeds(session, 0), session.levels)
    if file_check.faults:
        return _touched(file_check.faults)
    worst_tensor = max((checked.values.worst for checked in file_check.levels), key=lambda tensor: tensor.error)
    return CheckResult(f"{len(file_check.levels)} levels, random input; {worst_tensor}", {"faults": []})


def _touched(faults: Sequence[str]) -> CheckResult:
    remainder = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    advice = "make it anew: `tilefarm compile MODEL`, or `tilefarm export RUN` where a run made it"
    return CheckResult(f"{faults[0]}{remainder}; {advice}", {"faults": list(faults)}, "FAILED")


def _whole_way() -> CheckResult:
    """Compile a convolution for `tiny`, read the file back, execute it, compare with onnxruntime."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save_model

    from compiler.build import build_variants, default_plan, package
    from compiler.model import ModelSpec, lower_model
    from simulator.npu.machine_file import load_machine
    from tuner.verify.check import check_file

    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((8, 3, 3, 3), dtype=np.float32), "w")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1, 3, 8, 8]), ("y", [1, 8, 6, 6]))]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], name="conv")], "doctor", ports[:1], ports[1:], [weights])
    with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
        model, out = Path(folder) / "conv.onnx", Path(folder) / "out.onnx"
        save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
        lowered = lower_model(ModelSpec(model, load_machine("tiny")))
        plan = default_plan(lowered.target_graph)
        package(lowered, [build_variants(lowered.packed[0], dict.fromkeys(lowered.machine.contention, plan))], out)
        checked = check_file(out)
    faults = [fault for level in checked for fault in level.faults]
    if faults:
        raise TilefarmError(faults[0])
    error = max(level.values.worst.error for level in checked)
    return CheckResult(f"{len(checked)} levels, largest error {error:.1e}", {"levels": len(checked), "max_rel_error": error})
