"""configs/cluster: as far as one computer can tell, each does what its comment says."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from tests.tuning import QUICK, ROOT, save_small
from tuner.cli import app

FOLDER = ROOT / "configs" / "cluster"
OTHER_RAY = "Ray is already started on this node"  # where any does, tests beside this one too, symmetric-run starts none


def fake(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder of commands that write down how they were called."""
    for name in ("ray", "tilefarm"):
        fake(
            tmp_path,
            name,
            f'printf "%s\\n" "{name}" "$@" >> {shlex.quote(str(tmp_path))}/called; echo ==end== >> {shlex.quote(str(tmp_path))}/called',
        )
    fake(tmp_path, "scontrol", "echo node1; sleep 0.1; echo node2")  # whoever stops reading early breaks its pipe
    fake(tmp_path, "srun", 'shift; exec "$@"')
    return tmp_path


def calls(folder: Path) -> list[list[str]]:
    return [part.strip("\n").split("\n") for part in (folder / "called").read_text().split("\n==end==\n")[:-1]]


def accepted(words: list[str]) -> None:
    """`tilefarm` knows the command and every option."""
    shown = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "400", "TERM": "dumb"}).output
    for word in words[1:]:
        if word.startswith("--"):
            assert word in shown, word


def run(script: str, words: list[str], commands: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{commands}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HOME": str(commands), **environment}
    return subprocess.run(["bash", str(FOLDER / script), *words], env=env, capture_output=True, text=True, check=False)


def test_slurm_starts_ray_everywhere_and_one_driver(commands: Path) -> None:
    out = commands / "sweep"
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "4"}
    environment |= {"MODELS": "/m/a.onnx /m/b.onnx", "MACHINE": "edge", "OUT": str(out), "OPTIONS": "--seeds 3"}
    done = run("slurm.sh", [], commands, **environment)
    assert done.returncode == 0, done.stderr
    token, ray = calls(commands)
    assert token == ["ray", "get-auth-token", "--generate"]
    assert ray[1 : ray.index("--")] == ["symmetric-run", "--address", "node1:20007", "--min-nodes", "2", "--num-cpus", "4"]
    sweep = ray[ray.index("tilefarm") + 1 :]
    assert sweep[:3] == ["sweep", "/m/a.onnx", "/m/b.onnx"]
    assert sweep[sweep.index("--address") + 1] == "node1:20007"
    assert "--resume" not in sweep
    accepted(sweep)
    out.mkdir()
    (out / "run.json").write_text("{}")
    again = run("slurm.sh", [], commands, **environment)
    assert again.returncode == 0, again.stderr
    assert "--resume" in calls(commands)[-1]


def test_slurm_says_what_it_misses(commands: Path) -> None:
    done = run("slurm.sh", [], commands)
    assert done.returncode != 0
    assert "MODELS: files of the models" in done.stderr


def test_submit_hands_the_sweep_to_the_cluster(commands: Path) -> None:
    words = ["/data/my sweep", "/m/a b.onnx", "--machine", "edge", "--seeds", "2"]
    done = run("submit.sh", words, commands, RAY_API_SERVER_ADDRESS="http://head:8265")
    assert done.returncode == 0, done.stderr
    (called,) = calls(commands)
    assert called[1:3] == ["job", "submit"]
    entrypoint = called[called.index("-c") + 1]
    fake(commands, "tilefarm", f'printf "%s\\n" "$@" > {shlex.quote(str(commands))}/sweep-called')
    subprocess.run(["bash", "-c", entrypoint], env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}, check=True)
    sweep = (commands / "sweep-called").read_text().splitlines()
    assert sweep == ["sweep", "/m/a b.onnx", "--machine", "edge", "--seeds", "2", "--out", "/data/my sweep", "--address", "auto"]
    accepted(sweep)
    assert json.loads(called[called.index("--runtime-env-json") + 1])["env_vars"]
    assert run("submit.sh", [], commands).returncode == 2
    assert run("submit.sh", words, commands, RAY_API_SERVER_ADDRESS="").returncode != 0


def test_kuberay_job_has_the_form_of_one() -> None:
    job = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    # the fields of KubeRay 1.6's reference that are used here
    known = {"entrypoint", "submissionMode", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
    assert set(spec) == known
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    groups: list[dict[str, Any]] = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    entry = shlex.split(spec["entrypoint"])
    assert entry[:2] == ["bash", "-c"]
    assert subprocess.run(["bash", "-n", "-c", entry[2]], check=False).returncode == 0
    accepted(shlex.split(entry[2].partition("$(")[0])[1:])


@pytest.mark.slow
def test_a_sweep_on_a_cluster_that_ray_starts(tmp_path: Path) -> None:
    """What slurm.sh runs on every node, on this one alone: a real cluster with a token, used through its address."""
    model = save_small("conv_chain", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    subprocess.run([*ray, "get-auth-token", "--generate"], env=environment, capture_output=True, check=True)
    settings = [word for text in QUICK for word in ("--set", text)]
    sweep = ["sweep", str(model), "--machine", "edge", "--seeds", "2", "--candidates", "8", "--out", str(tmp_path / "out"), *settings]
    start = [*ray, "symmetric-run", "--address", address, "--min-nodes", "1", "--num-cpus", "2", "--"]
    words = [*start, sys.executable, "-m", "tuner", *sweep, "--address", address]
    for _ in range(60):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
        if OTHER_RAY not in done.stderr:
            break
        time.sleep(2.0)
    else:
        pytest.skip("a Ray of something else runs on this computer")
    assert done.returncode == 0, done.stderr[-2000:]
    index = pd.read_parquet(tmp_path / "out" / "index.parquet")
    assert set(index["state"]) == {"done"}
    assert index["path"].nunique() == 2
