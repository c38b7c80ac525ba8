"""Quotas of control groups, of both versions, in folders as the kernel lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.platform import cpus

V1, V2 = "3:cpuset:/\n2:cpu,cpuacct:{}\n0::/\n", "0::{}\n"


@pytest.mark.parametrize(
    ("version", "group", "quotas", "usable"),
    [
        (1, "/", {}, 8),
        (1, "/", {"": "-1"}, 8),
        (1, "/h_quota", {"": "-1", "h_quota": "100000"}, 1),
        (1, "/docker/0123", {"": "200000"}, 2),  # of a container, whose own group is the root there
        (1, "/a/b", {"a": "300000", "a/b": "-1"}, 3),
        (2, "/", {}, 8),
        (2, "/", {"": "max"}, 8),
        (2, "/", {"": "150000"}, 1),
        (2, "/", {"": "50000"}, 1),
        (2, "/kubepods/pod1", {"kubepods": "400000", "kubepods/pod1": "250000"}, 2),
        (2, "/kubepods/pod1", {"kubepods/pod1": "9900000"}, 8),
        (2, "/a/../../up", {"": "max"}, 8),
    ],
)
def test_quotas(version: int, group: str, quotas: dict[str, str], usable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cpu" if version == 1 else tmp_path
    for name, quota in quotas.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        if version == 1:
            (root / name / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (root / name / "cpu.cfs_period_us").write_text("100000\n")
        else:
            (root / name / "cpu.max").write_text(f"{quota} 100000\n")
    (tmp_path / "cgroup").write_text((V1 if version == 1 else V2).format(group))
    monkeypatch.setattr(cpus, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(cpus, "CGROUPS_OF_PROCESS", tmp_path / "cgroup")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert cpus.usable_cpus() == usable


def test_no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "CGROUPS_OF_PROCESS", tmp_path / "nothing")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 5})
    assert cpus.usable_cpus() == 2
