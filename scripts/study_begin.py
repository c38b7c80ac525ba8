"""How good is the best program after a part of a search's measurements?  The default, which begins with every operator alone in many
ways, against a search whose first programs are the segmentations that are cheapest by prediction (`use.prediction`).

Both have the same budget of programs.  Per network, level and seed: cycles of the best program after a share of the tasks that the search
without prediction measures, over the cycles of the best one that it finds in the end.  Below 1 is faster.  Goals, in the geometric mean:
within 1% with a tenth of the tasks, 2% faster with all of them.  `tasks`: what each of them has measured in the end, segments and programs.

    python scripts/study_begin.py --out begin
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import Arm, Pair, Row, Study, Table, command, geometric, goal, groups, interval

WITHOUT, WITH = "without", "with"
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
TENTH, ALL = 1.01, 0.98


def rows(pair: Pair) -> Iterator[Row]:
    """Of every arm, share of the tasks, and level."""
    reference = pair.found[WITHOUT]
    for arm, result in pair.found.items():
        log = result.log
        for share in SHARES:
            part = log[log["seq"].isin(sorted(log["seq"].unique())[: round(share * reference.tasks)])]
            best = part[(part["kind"] == "program") & (part["status"] == "ok")].groupby("level", observed=True)["cycles"].min()
            for level in pair.levels:
                over = float(best[level]) / reference.cycles[level]
                yield {"arm": arm, "share": share, "level": level, "over": over, "tasks": result.tasks, "cpu_s": pair.cpu_s[arm]}


def show(found: Sequence[Row]) -> Iterator[Table | str]:
    """A line per network and arm; the mean over pairs with its interval."""
    pair = ("network", "machine", "seed")
    table = []
    for (network, arm), mine in groups(found, "network", "arm").items():
        shares = [f"{geometric(np.array([row['over'] for row in each])):.3f}" for each in groups(mine, "share").values()]
        tasks, cpu_s = (np.mean([levels[0][key] for levels in groups(mine, *pair).values()]) for key in ("tasks", "cpu_s"))
        table.append((network, arm, *shares, round(tasks), f"{cpu_s:.0f}"))
    over = {
        key: np.array([geometric(np.array([row["over"] for row in levels])) for levels in groups(mine, *pair).values()])
        for key, mine in groups(found, "arm", "share").items()
    }
    means = {share: (geometric(ratios), *interval(ratios, geometric)) for (arm, share), ratios in over.items() if arm == WITH}
    yield "cycles of the best program over those in the end of the search without prediction, after a share of its tasks"
    yield Table(("<network", "<prediction", *(f"{share:.0%}" for share in SHARES), "tasks", "CPU s"), table)
    yield "with prediction over without it, at the same share: mean and 95% interval over the pairs"
    against = [(share, over[WITH, share] / over[WITHOUT, share]) for share in SHARES]
    yield Table(
        ("tasks", "with / without", "<95% interval"),
        [(f"{share:.0%}", f"{geometric(each):.3f}", "{:.3f} .. {:.3f}".format(*interval(each, geometric))) for share, each in against],
    )
    for share, limit in ((0.1, TENTH), (1.0, ALL)):
        mean, low, high = means[share]
        yield f"goal, {limit:g} with {share:.0%} of the tasks: {mean:.4f} ({low:.4f} .. {high:.4f}), {goal(mean <= limit)}"


STUDY = Study(
    "begin", {WITHOUT: Arm(), WITH: Arm(("use.prediction=true",))}, rows, show,
    networks="squeezenet,shufflenet,inception_v1,resnet50,made:mobilenet_v2", candidates=384, seeds=3,
)  # fmt: skip

if __name__ == "__main__":
    command(STUDY, "How good the best program is after a part of a search's measurements, with and without prediction.")
