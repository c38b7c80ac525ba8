"""The study of boards on a small network: gains, pairs, and cells that are not computed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scripting import run_script
from tests.tuning import FEW, save_small

SET = [word for text in FEW if not text.startswith("use.") for word in ("--set", text)]


def lines(found: dict[str, Any]) -> str:
    """What is shown beside tables."""
    return "\n".join(part for part in found["shown"] if isinstance(part, str))


def test_arms_have_equal_readings_and_are_not_recomputed(tmp_path: Path) -> None:
    words = ["--networks", save_small("residual_block", tmp_path), "--out", tmp_path / "out"]
    words += ["--seeds", 1, "--measurements", "400", "--json"]
    done = run_script("study", "board", *words, "--arms", "off,on", *SET, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["arm"] for row in found["rows"]] == ["off", "on"]
    for row in found["rows"]:
        assert 300 < row["read"] <= 400
        assert row["gain"] > 1
    one, other = (row["gain"] for row in found["rows"])
    assert f"on: {other / one:.4f} of the gain without a model, in 1 pairs" in lines(found)
    (cell,) = (tmp_path / "out" / "board").iterdir()
    kept = json.loads(cell.read_text())
    kept["rows"][1]["gain"] = 2 * one
    cell.write_text(json.dumps(kept))
    again = json.loads(run_script("study", "board", *words, "--arms", "off,on", *SET, cwd=tmp_path).stdout)
    assert "\non: 2.0000 of the gain" in lines(again)
