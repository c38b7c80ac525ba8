"""What is not there is refused before a kernel looks it up."""

from __future__ import annotations

import pytest

from compiler.ops.lower_graph import make_unit
from compiler.space.gene import Gene, Genome
from simulator.npu.errors import TilefarmError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph
from tests.tuner.search.searching import LEVELS, Local
from tuner.config import load_config
from tuner.farm.jobs import Job, Update, build_job_runner
from tuner.farm.search_spec import SearchSpec
from tuner.log.writer import Origin
from tuner.measure.request import Request
from tuner.search.ask_tell import Asking
from tuner.search.segmentation import Segmentation
from tuner.search.validate import check_requests

UNIT = make_unit(small_graph("conv_chain"), load_machine("tiny"), DataType.float16)
N = len(UNIT.operators)


@pytest.mark.parametrize(
    ("kind", "genome", "text"),
    [
        ("segment", (Gene(0, N + 1),), rf"operators 0\.\.{N}; the model has 0\.\.{N - 1}"),
        ("segment", (Gene(-1, 1),), r"operators -1\.\.0; the model has"),
        ("segment", (Gene(1, 1),), r"operators 1\.\.0; the model has"),
        ("segment", (), "0 genes; expected one for a segment"),
        ("segment", (Gene(0, 1), Gene(1, 2)), "2 genes; expected one for a segment"),
        ("segment", (Gene(0, 1, 0),), "blocks 0; expected 1 at least"),
        ("segment", (Gene(0, 1, input_passes=0),), "input_passes 0; expected 1 at least"),
        ("segment", (Gene(0, 1, lookahead=1 << 13),), "lookahead 8192; expected 1 to 4096"),
        ("segment", (Gene(0, 1, images=2),), "images 2; expected a divisor of 1"),
        ("segment", (Gene(0, 1, cores=(2,)),), r"cores \(2,\); expected some of 0\.\.1, each once"),
        ("segment", (Gene(0, 1, cores=(0, 0)),), r"cores \(0, 0\); expected some of 0\.\.1, each once"),
        ("segment", (Gene(0, 1, held=2),), "held 2; expected bits of 1 operators"),
        ("segment", (Gene(0, 2, choices=(1,)),), r"choices \(1,\); expected 0 or more for each of 2 operators"),
        ("segment", (Gene(0, 2, pinned=(1,)),), r"pinned \(1,\); expected 6 for each of 2 tilings"),
        ("stage", (Gene(1, 2), Gene(0, 1)), "a gene begins at operator 0 behind operator 1; expected their order"),
        ("program", (Gene(0, 1), Gene(2, N)), "a gene begins at operator 2 behind operator 0"),
        ("program", (Gene(0, N - 1),), f"it ends at operator {N - 2}; the model has {N}"),
        ("model", (Gene(0, N),), "expected a segment, a stage or a program"),
    ],
)
def test_what_is_not_there_is_refused(kind: str, genome: Genome, text: str) -> None:
    with pytest.raises(TilefarmError, match=f"the strategy asked for a {kind} of genes .*: {text}"):
        check_requests(UNIT, [Request("program", (Gene(0, N),)), Request(kind, genome)])  # type: ignore[arg-type]


def test_a_job_measures_nothing_that_is_not_there() -> None:
    """It took the process along: kernels do not look where they read."""

    class Beyond(Segmentation):
        def ask(self, epoch: int) -> Asking[None]:
            yield [Request("segment", (Gene(0, N + 3),), False)]

    job_runner = build_job_runner(SearchSpec(Origin("r", "m", "tiny", "v"), UNIT, LEVELS, load_config(), strategy=Beyond))
    local = Local(UNIT)
    with pytest.raises(TilefarmError, match="the strategy asked for a segment"):
        job_runner.work(Job(1, 0, 0, 0), Update(0, (), None), local)
    assert local.asked == []
