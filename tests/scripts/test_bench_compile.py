"""CPU seconds of compilations."""

from __future__ import annotations

from tests.scripting import run_script


def test_a_row_for_each_network(tmp_path) -> None:
    done = run_script("bench_compile", "--networks", "made:llama-small", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, row = done.stdout.splitlines()
    assert head.split()[0] == "network"
    name, operators, seconds, *_ = row.split()
    assert (name, int(operators) > 20, float(seconds) > 0) == ("llama-small", True, True)
