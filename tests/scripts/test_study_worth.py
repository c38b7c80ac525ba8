"""What mechanisms are worth: none is slower, none spares what is not there, and what each would take away is gone."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from compiler.frontend import load_model
from compiler.ops.conv import ConvSpec
from scripts.chains import attention_block
from scripts.study_worth import (
    COLUMNS,
    DIRECT,
    Champion,
    Stream,
    _filled,
    remove_padding,
    remove_spills,
    remove_vector_work,
    remove_zero_blocks,
    share_depthwise,
)
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.parts import Engine
from tests.models import Builder, small_model
from tests.scripting import run_script
from tests.scripts.test_traffic import layer_by_layer
from tests.tuning import QUICK


@cache
def champion(name: str, level: str = "severe") -> Champion:
    target_graph, program = layer_by_layer(small_model(name))
    return Champion(target_graph, program, level)


@cache
def attending() -> Champion:
    """Products of two tensors, and softmax."""
    target_graph, program = layer_by_layer(load_model(attention_block(32, 64, 2).model(), random_weights=0))
    return Champion(target_graph, program, "severe")


@pytest.mark.parametrize("name", ["conv_chain", "shuffle_block", "residual_block", "attention"])
def test_nothing_is_slower(name: str) -> None:
    found = attending() if name == "attention" else champion(name)
    before = found.cycles()
    after = {mechanism: found.cycles(*changes) for mechanism, changes in DIRECT.items()}
    after |= {"ahead": found.fetch_early(), "interleaved": found.interleaved()}
    assert all(0 < value <= before for value in after.values())
    assert found.all_ideal() <= min(after.values())


def test_streams_stay_as_they_are() -> None:
    found = champion("shuffle_block")
    kept = [stream.code.copy() for stream in found.streams]
    found.all_ideal()
    assert all(np.array_equal(stream.code, code) for stream, code in zip(found.streams, kept, strict=True))


def test_zeros_of_a_depthwise_convolution() -> None:
    """Its weights have none; of the 16 masks that expand them a load has one at least."""
    b = Builder(np.random.default_rng(0), (1, 32, 8, 8))
    target_graph, program = layer_by_layer(b.model(b.conv("x", 32, groups=32)))
    found = Champion(target_graph, program, "none")
    before, after = found.timed(), found.timed(remove_padding)
    assert before.ddr_read_bytes - after.ddr_read_bytes == 15 * 32


@pytest.mark.parametrize(("channels", "groups", "kept", "share"), [(64, 4, 4, 1.0), (48, 2, 1, 7 / 9)])
def test_blocks_without_weights(channels: int, groups: int, kept: int, share: float) -> None:
    """Groups of 24 channels share the plane between them, so the product is dense: of 3 x 3 blocks the outer corners hold nothing."""
    b = Builder(np.random.default_rng(0), (1, channels, 6, 6))
    target_graph, program = layer_by_layer(b.model(b.conv("x", channels, groups=groups)))
    (spec,) = [each for each in target_graph.operators if isinstance(each, ConvSpec)]
    assert (spec.groups, _filled(target_graph, spec)) == (kept, share)
    found = Champion(target_graph, program, "none")
    before, after = (found.timed(*changes).busy_cycles.sum(0)[Engine.CUBE] for changes in ((), (remove_zero_blocks,)))
    assert after == before if share == 1 else after < before


def test_what_a_mechanism_takes_away_is_gone() -> None:
    found = champion("conv_chain")
    (stream,) = [each for each in found.streams if len(each.code)]
    code = stream.code.copy()
    remove_spills(stream, code)
    rows = stream.rows("scratch")
    assert len(rows)
    assert (code[rows][:, [isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2]] == 1).all()
    busy = found.timed(remove_vector_work).busy_cycles.sum(0)
    assert busy[Engine.VECTOR] <= found.timed().busy_cycles.sum(0)[Engine.VECTOR]


def test_a_depthwise_convolution_is_shared_with_vector() -> None:
    b = Builder(np.random.default_rng(0), (1, 32, 16, 16))
    target_graph, program = layer_by_layer(b.model(b.conv("x", 32, groups=32)))
    stream = Stream(target_graph, program, next(code for code in program.streams if len(code)))
    code = stream.code.copy()
    share_depthwise(stream, code)
    products = stream.has_operator(Op.MMAD)
    # 9/16 of a cycle for a pixel of a plane on CUBE, 9/8 on VECTOR: CUBE keeps two thirds
    assert code[products, isa.M_MPAD].sum() == pytest.approx(stream.code[products, isa.M_MPAD].sum() * 2 / 3, rel=0.05)


def test_the_table(tmp_path: Path) -> None:
    words = ["--networks", "made:mobilenet_v2-small", "--out", tmp_path / "worth", "--candidates", 2]
    done = run_script("study", "worth", *words, *(word for text in QUICK for word in ("--set", text)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "worth" / "worth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["level"] for row in rows] == ["none", "slight", "severe"]
    for row in rows:
        assert int(row["all"]) <= min(int(row[name]) for name in COLUMNS) <= int(row["cycles"])
    assert "at severe: saved, at most" in done.stdout
