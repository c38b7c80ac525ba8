"""A search that begins with a plan measures it first, keeps what is best of it, and goes on from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from compiler.model import ModelSpec, lower_model
from compiler.plan.plan import ConvTiling, Plan
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from compiler.space.operator_order import ordered
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.piece_models import piece_model
from tests.tuning import assert_equal_runs, quick, save_small
from tuner.cli import main
from tuner.log.read import read_log, read_tasks
from tuner.runs.folder import read_json


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("inception_block", tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def best(net: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best plan for `none` of a longer run."""
    run = tmp_path_factory.mktemp("best") / "run"
    quick(net, run, 48)
    return run / "plans" / "none.json"


@pytest.fixture(scope="module")
def odd(best: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It with tilings that no rank names: chunks of more than all channels."""
    plan, changed = Plan.load(best), 0
    segments = []
    for segment in plan.segments:
        tilings = list(segment.tilings)
        for k, tiling in enumerate(tilings):
            if isinstance(tiling, ConvTiling):
                tilings[k], changed = tiling.model_copy(update={"chunk_n1": 1 << 10}), changed + 1
        segments.append(segment.model_copy(update={"tilings": tuple(tilings)}))
    assert changed
    path = tmp_path_factory.mktemp("odd") / "odd.json"
    path.write_text(plan.model_copy(update={"segments": tuple(segments)}).to_json())
    return path


def edited(path: Path, out: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    raw = Plan.load(path).model_dump(mode="json")
    change(raw)
    out.write_text(Plan.model_validate(raw).to_json())
    return out


def test_a_plan_that_is_better_stays_the_champion(net: Path, best: Path, tmp_path: Path) -> None:
    """Than all that four programs find without it and without what `compile` takes: it is the champion, or what became of it."""
    cold = quick(net, tmp_path / "cold", 4, "use.segmentations=false", seed=7)
    begun = [quick(net, tmp_path / str(count), count, seed=7, start=(best,)).own_cycles["none"] for count in (2, 4)]
    assert Plan.load(tmp_path / "2" / "plans" / "own" / "none.json") == Plan.load(best)
    assert begun[1] <= begun[0] < cold.own_cycles["none"]


def test_it_is_measured_to_the_letter(net: Path, odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two programs the first is layer by layer, the second the plan."""
    plan = Plan.load(odd)
    quick(net, tmp_path / "begun", 2, seed=7, start=(odd,), quiet=False)
    assert Plan.load(tmp_path / "begun" / "plans" / "own" / "none.json") == plan
    assert read_json(tmp_path / "begun" / "run.json")["start"] == [plan.digest]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("start: ")]
    assert len(said) == 1
    assert f"{odd}: {len(plan.segments)} segments" in said[0]
    quick(net, tmp_path / "more", 4, "use.segmentations=false", seed=7, start=(odd,))
    log = read_log(tmp_path / "more")
    payloads = read_tasks(tmp_path / "more").set_index("task")["payload"]
    contents = [json.loads(payloads[task])["plan"] for task in log.loc[log["kind"].isin(["operator", "segment"]), "task"].unique()]
    mine = [segment.model_dump(mode="json", exclude={"operators"}) | {"cores": [0]} for segment in plan.segments]
    assert all(segment in contents for segment in mine), "its segments are in the table"


def test_search_continues_an_initial_plan_and_resumes_without(net: Path, odd: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone.json"
    gone.write_bytes(odd.read_bytes())
    whole = quick(net, tmp_path / "whole", 16, seed=7, start=(odd, gone))
    assert read_json(tmp_path / "whole" / "run.json")["start"] == [Plan.load(odd).digest], "equal plans are one"
    quick(net, tmp_path / "parts", 8, seed=7, start=(gone,))
    other = edited(odd, tmp_path / "other.json", lambda raw: raw["segments"][0].update(spread=False))
    with pytest.raises(BadInputError, match="began with plans"):
        quick(net, tmp_path / "parts", 16, seed=7, start=(other,), resume=True)
    gone.unlink()
    quick(net, tmp_path / "parts", 16, seed=7, resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")
    log = read_log(tmp_path / "whole")
    programs = log[(log["kind"] == "program") & (log["level"] == "none")].groupby("generation")["cycles"].min()
    assert programs.index.max() > 1
    assert log.loc[log["kind"] == "program", "proposed_by"].drop_duplicates().tolist()[:2] == ["baseline", "start"]
    assert whole.own_cycles["none"] == programs.min() <= programs[0]
    (tmp_path / "parts" / "checkpoint" / "state.json").unlink()
    with pytest.raises(BadInputError, match="name the plans again"):
        quick(net, tmp_path / "parts", 16, seed=7, resume=True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda raw: raw.update(machine="0" * 32), "made for machine"),
        (lambda raw: raw.update(model="0" * 32), "made for model"),
        (lambda raw: raw["segments"].pop(), "is missing"),
    ],
)
def test_a_wrong_plan_is_one_line(
    net: Path, odd: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = edited(odd, tmp_path / "wrong.json", change)
    words = ["tune", net, "--machine", "edge", "--out", tmp_path / "run", "--candidates", "4", "--backend", "serial", "--start", wrong]
    assert main([str(word) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tilefarm: {wrong}: ")
    assert what in line
    assert not (tmp_path / "run").exists()


def test_unfit_plan_is_refused_as_by_compile(net: Path, odd: Path, tmp_path: Path) -> None:
    def huge(raw: dict[str, Any]) -> None:
        tiling = next(t for segment in raw["segments"] for t in segment["tilings"] if t["kind"] == "conv")
        tiling["tile_m"] = 1 << 20

    wrong = edited(odd, tmp_path / "huge.json", huge)
    with pytest.raises(InfeasibleError, match="does not fit edge"):
        quick(net, tmp_path / "run", 4, start=(wrong,))


def test_a_plan_in_another_order_says_so(net: Path, odd: Path, tmp_path: Path) -> None:
    orders = {"search.order=file", "search.order=depth"}
    refused = []
    for order in sorted(orders):
        try:
            quick(net, tmp_path / order[-4:], 3, order, start=(odd,))
        except BadInputError as error:
            refused.append(str(error))
    assert len(refused) == 1
    assert "search.order" in refused[0]


def test_initial_plan_keeps_its_cores_where_others_spread(net: Path, tmp_path: Path) -> None:
    machine = "edge:cores=2"
    target_graph = ordered(lower_model(ModelSpec(net, load_machine(machine), DataType.float16)).target_graph, "depth")
    segment = decode(target_graph, Gene(0, len(target_graph.operators), 2))
    assert segment is not None
    plan = plan_of(target_graph, [segment])
    (tmp_path / "one.json").write_text(plan.to_json())
    quick(net, tmp_path / "run", 2, "use.placement=false", machine=machine, start=(tmp_path / "one.json",))
    payloads = read_tasks(tmp_path / "run")["payload"]
    assert plan.model_dump(mode="json") in [json.loads(payload).get("plan") for payload in payloads]


def test_every_piece_begins_with_its_part(tmp_path: Path) -> None:
    model = tmp_path / "chain.onnx"
    onnx.save(piece_model("chain"), model)
    quick(model, tmp_path / "longer", 8)
    plan = tmp_path / "longer" / "plans" / "none.json"
    quick(model, tmp_path / "begun", 8, seed=7, start=(plan,))
    asked = Plan.load(plan)
    assert len(asked.pieces) > 1
    log, payloads = read_log(tmp_path / "begun"), read_tasks(tmp_path / "begun").set_index("task")["payload"]
    first_programs = log.loc[(log["kind"] == "program") & (log["generation"] == 0), "task"].unique()
    measured = [json.loads(payloads[task])["plan"]["segments"] for task in first_programs]
    for k in range(len(asked.pieces)):
        assert [segment.model_dump(mode="json") for segment in asked.piece(k).segments] in measured
    first = edited(plan, tmp_path / "first.json", lambda raw: raw.pop("pieces"))
    with pytest.raises(BadInputError, match="runs in"):
        quick(model, tmp_path / "refused", 4, start=(first,))
