"""The controller's C, compiled and run as a program: for tests that have a compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from simulator.bundle.c_rule import COMPILERS, FLAGS, c_compiler
from simulator.controller import Observation, ThresholdRule

SANITIZER = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-g")

# rules and what they see on stdin, a state per step on stdout
DRIVER = r"""
#include <inttypes.h>
#include <stdio.h>
#include "controller.h"

#define MOST 16

int main(void)
{
    uint32_t ladder[MOST], t_min[MOST], t_max[MOST], positions;
    uint64_t slice, steps;

    while (scanf("%" SCNu32 " %" SCNu64 " %" SCNu64, &positions, &slice, &steps) == 3) {
        tilefarm_rule rule = {positions, ladder, t_min, t_max, slice};
        tilefarm_state state;
        uint32_t *columns[3] = {ladder, t_min, t_max};

        for (uint32_t i = 0u; i < 3u; i++) {
            for (uint32_t k = 0u; k + (i > 0u) < positions; k++) {
                if (scanf("%" SCNu32, &columns[i][k]) != 1) {
                    return 1;
                }
            }
        }
        printf("%" PRIu32 "\n", tilefarm_start(&rule, &state));
        for (; steps > 0u; steps--) {
            tilefarm_seen seen;
            if (scanf("%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &seen.start, &seen.end, &seen.compute_cycles,
                      &seen.load_store_cycles) != 4) {
                return 1;
            }
            uint32_t next = tilefarm_step(&rule, &state, &seen);
            printf("%" PRIu32 " %" PRIu32 " %" PRId32 " %" PRIu64 "\n", next, state.position, state.leaning, state.since);
        }
    }
    return 0;
}
"""


def compiler() -> str:
    """The host's C compiler; skips the test where there is none."""
    found = c_compiler()
    if found is None:
        pytest.skip(f"no C compiler on the PATH ({', '.join(COMPILERS)})")
    return found


def compiled_program(folder: Path, main: str, *more: str) -> Path:
    """`main` with the controller in `folder`, by the flags that a bundle promises to pass."""
    (folder / "main.c").write_text(main)
    words = [compiler(), *FLAGS, *more, "-o", "main", "main.c", "controller.c"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "main"


def decided(program: Path, rules: Iterable[tuple[ThresholdRule, Sequence[Observation]]]) -> list[tuple[int, ...]]:
    """What C says of every rule: its first variant, then variant, position, leaning and since after every step."""
    words: list[int] = []
    for rule, seen in rules:
        words += [len(rule.ladder), rule.slice_cycles, len(seen), *rule.ladder, *rule.t_min, *rule.t_max]
        for one in seen:
            words += [one.start, one.end, one.compute_cycles, one.load_store_cycles]
    done = subprocess.run([program], input=" ".join(map(str, words)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
